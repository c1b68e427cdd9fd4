#include "kernels/cpu/matmul_dnnl.h"

#include <algorithm>
#include <string_view>

#include "kernels/core/check.h"
#include "kernels/cpu/parallel_for.h"

namespace dstrain {
namespace {

using dnnl::memory;

memory::desc matrix(std::int64_t rows,
                    std::int64_t columns,
                    MatmulLayout layout,
                    DType dtype = DType::kBF16) {
  using Tag = memory::format_tag;
  const auto tag = layout == MatmulLayout::kRows         ? Tag::ab
                   : layout == MatmulLayout::kTransposed ? Tag::ba
                                                         : Tag::BA16a64b2a;
  const auto type = dtype == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
  return {{rows, columns}, type, tag};
}

}  // namespace

DnnlMatmuls::DnnlMatmuls(int threads_of_a_call, int workers)
    : threads_of_a_call_(threads_of_a_call),
      scratch_of_worker_(static_cast<std::size_t>(workers)) {}

DnnlMatmuls::Call* DnnlMatmuls::find(const DnnlMatmulKind& kind) {
  auto found = calls_.find(kind);
  if (found == calls_.end()) {
    found = calls_.emplace(kind, make(kind)).first;
  }
  return found->second ? &*found->second : nullptr;
}

void DnnlMatmuls::run(
    Call& call, int worker, const BF16* a, const BF16* b, const BF16* bias, void* c) const {
  Arguments& arguments = call.of_worker[static_cast<std::size_t>(worker)];
  // oneDNN's handles are never const; the operands are only read.
  arguments.a.set_data_handle(const_cast<BF16*>(a));
  arguments.b.set_data_handle(const_cast<BF16*>(b));
  arguments.c.set_data_handle(c);
  arguments.scratch.set_data_handle(
      scratch_of_worker_[static_cast<std::size_t>(worker)].get<void>());
  if (bias != nullptr) {
    arguments.bias.set_data_handle(const_cast<BF16*>(bias));
  }
  const OpenMpTeam team(threads_of_a_call_);
  call.primitive.execute(stream_, arguments.by_index);
}

std::optional<DnnlMatmuls::Call> DnnlMatmuls::make(const DnnlMatmulKind& kind) {
  const OpenMpTeam team(threads_of_a_call_);  // oneDNN cuts the work when a primitive is made
  const memory::desc a = matrix(kind.m, kind.k, kind.a);
  const memory::desc b = matrix(kind.k, kind.n, kind.b);
  const memory::desc bias = matrix(1, kind.n, MatmulLayout::kRows);
  const memory::desc c = matrix(kind.m, kind.n, MatmulLayout::kRows, kind.c_dtype);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (kind.add) {
    dnnl::post_ops add_to_c;
    add_to_c.append_sum();
    attributes.set_post_ops(add_to_c);
  }
  try {
    const dnnl::matmul::primitive_desc description(
        kind.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c), attributes,
        engine_);
    if (std::string_view(description.impl_info_str()).starts_with("ref")) {
      return std::nullopt;  // a thousand times slower than f32 is
    }
    const memory::desc scratch = description.scratchpad_desc();
    for (GrowingBuffer& buffer : scratch_of_worker_) {
      buffer.grow<std::byte>(static_cast<std::int64_t>(scratch.get_size()));
    }
    Call call{.primitive = dnnl::matmul(description),
              .of_worker = std::vector<Arguments>(scratch_of_worker_.size())};
    for (Arguments& arguments : call.of_worker) {
      const auto place = [&](const memory::desc& desc) { return memory(desc, engine_, nullptr); };
      arguments = {.a = place(a),
                   .b = place(b),
                   .bias = place(bias),
                   .c = place(c),
                   .scratch = place(scratch),
                   .by_index = {}};
      arguments.by_index = {{DNNL_ARG_SRC, arguments.a},
                            {DNNL_ARG_WEIGHTS, arguments.b},
                            {DNNL_ARG_DST, arguments.c},
                            {DNNL_ARG_SCRATCHPAD, arguments.scratch}};
      if (kind.bias) {
        arguments.by_index.emplace(DNNL_ARG_BIAS, arguments.bias);
      }
    }
    return call;
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) {
      return std::nullopt;
    }
    throw;
  }
}

}  // namespace dstrain
