#include "kernels/cpu/matmul_bf16.h"

#include <cstddef>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <oneapi/dnnl/dnnl.hpp>

#include "kernels/cpu/matmul_team.h"
#include "kernels/cpu/scratch_pool.h"

namespace dstrain {
namespace {

using dnnl::memory;

/// What a primitive is made for.
struct Kind {
  ProductForm form;
  bool bias;
  DType c_dtype;
  friend bool operator==(const Kind&, const Kind&) = default;
};

struct KindHash {
  std::size_t operator()(const Kind& kind) const {
    const ProductForm& form = kind.form;
    std::uint64_t hash = 0;
    const auto mix = [&](std::int64_t value) {
      hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 29U;
    };
    mix(form.m);
    mix(form.n);
    mix(form.k);
    mix((form.a_transposed ? 1 : 0) + (form.b_transposed ? 2 : 0) + (kind.bias ? 4 : 0) +
        (kind.c_dtype == DType::kF32 ? 8 : 0) + (form.write == Write::kAdd ? 16 : 0));
    return static_cast<std::size_t>(hash);
  }
};

struct Primitive {
  dnnl::matmul matmul;
  std::int64_t scratch_bytes = 0;
  memory a, b, bias, c, scratch;
  std::unordered_map<int, memory> arguments;  // share their handles with the five above
};

}  // namespace

struct Bf16Matmul::Impl {
  explicit Impl(int num_threads) : threads(num_threads) {}
  std::optional<Primitive> make(const Kind& kind) const;

  int threads;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::unordered_map<Kind, std::optional<Primitive>, KindHash> primitives;
  ScratchPool scratch;
};

Bf16Matmul::Bf16Matmul(int threads) : impl_(std::make_unique<Impl>(threads)) {}
Bf16Matmul::~Bf16Matmul() = default;

bool Bf16Matmul::run(const Bf16Product& product) {
  const OpenMpTeam team(impl_->threads);
  const Kind kind{
      .form = product.form, .bias = product.bias != nullptr, .c_dtype = product.c_dtype};
  auto found = impl_->primitives.find(kind);
  if (found == impl_->primitives.end()) {
    found = impl_->primitives.emplace(kind, impl_->make(kind)).first;
  }
  if (!found->second) {
    return false;
  }
  Primitive& primitive = *found->second;
  const auto scratch = impl_->scratch.lease(primitive.scratch_bytes);
  // oneDNN's handles are never const; the sources are only read.
  primitive.a.set_data_handle(const_cast<BF16*>(product.a));
  primitive.b.set_data_handle(const_cast<BF16*>(product.b));
  primitive.c.set_data_handle(product.c);
  primitive.scratch.set_data_handle(scratch.as<void>());
  if (kind.bias) {
    primitive.bias.set_data_handle(const_cast<BF16*>(product.bias));
  }
  primitive.matmul.execute(impl_->stream, primitive.arguments);
  return true;
}

std::optional<Primitive> Bf16Matmul::Impl::make(const Kind& kind) const {
  const ProductForm& form = kind.form;
  constexpr auto kBf16 = memory::data_type::bf16;
  const auto matrix = [](std::int64_t rows, std::int64_t columns, memory::data_type type,
                         bool transposed) {
    return memory::desc({rows, columns}, type,
                        transposed ? memory::format_tag::ba : memory::format_tag::ab);
  };
  const auto c_type = kind.c_dtype == DType::kF32 ? memory::data_type::f32 : kBf16;
  const memory::desc a = matrix(form.m, form.k, kBf16, form.a_transposed);
  const memory::desc b = matrix(form.k, form.n, kBf16, form.b_transposed);
  const memory::desc c = matrix(form.m, form.n, c_type, false);
  const memory::desc bias = matrix(1, form.n, kBf16, false);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (form.write == Write::kAdd) {
    dnnl::post_ops add_to_c;
    add_to_c.append_sum();
    attributes.set_post_ops(add_to_c);
  }
  try {
    const dnnl::matmul::primitive_desc description(
        kind.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c), attributes,
        engine);
    if (std::string_view(description.impl_info_str()).starts_with("ref")) {
      return std::nullopt;  // plain loops: a thousand times slower than f32
    }
    const auto place = [&](const memory::desc& desc) { return memory(desc, engine, nullptr); };
    const memory::desc scratchpad = description.scratchpad_desc();
    Primitive made{.matmul = dnnl::matmul(description),
                   .scratch_bytes = static_cast<std::int64_t>(scratchpad.get_size()),
                   .a = place(a),
                   .b = place(b),
                   .bias = place(bias),
                   .c = place(c),
                   .scratch = place(scratchpad),
                   .arguments = {}};
    made.arguments = {{DNNL_ARG_SRC, made.a},
                      {DNNL_ARG_WEIGHTS, made.b},
                      {DNNL_ARG_DST, made.c},
                      {DNNL_ARG_SCRATCHPAD, made.scratch}};
    if (kind.bias) {
      made.arguments.emplace(DNNL_ARG_BIAS, made.bias);
    }
    return made;
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) {
      return std::nullopt;
    }
    throw;
  }
}

}  // namespace dstrain
