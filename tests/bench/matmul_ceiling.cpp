#include "tests/bench/matmul_ceiling.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>

#include <oneapi/dnnl/dnnl.hpp>
#include <sys/mman.h>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_memory.h"

namespace dstrain::bench {
namespace {

using dnnl::memory;
constexpr double kSecondsPerProduct = 0.6;
constexpr int kFewestRounds = 4;
constexpr int kMostRounds = 60;

/// With one thread, the time it had a processor: a neighbour on the machine then costs less truth.
double seconds_now(int threads) {
  timespec now{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Touched memory on huge pages where the kernel gives them, as the arena's is.
class Buffer {
 public:
  Buffer(std::int64_t bytes, DType dtype) {
    constexpr std::int64_t kHugePage = 2 << 20;
    const auto rounded = static_cast<std::size_t>((bytes + kHugePage) / kHugePage * kHugePage);
    data_.reset(std::aligned_alloc(kHugePage, rounded));
    madvise(data_.get(), rounded, MADV_HUGEPAGE);
    const std::int64_t n = bytes / size_of(dtype);
    for (std::int64_t k = 0; k < n; ++k) {
      const float value = static_cast<float>(k * 7919 % 193 - 96) / 96.0F;
      if (dtype == DType::kF32) {
        static_cast<float*>(data_.get())[k] = value;
      } else {
        static_cast<BF16*>(data_.get())[k] = to_bf16(value);
      }
    }
  }
  [[nodiscard]] void* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
};

/// The ways to compute one product. Owns what they read and write.
class Variants {
 public:
  Variants(const LinearShape& shape, LinearProduct product, DType dtype, int threads);

  std::vector<VariantTime> measure();

 private:
  struct Variant {
    VariantTime time;
    std::function<void()> run;
  };
  using Arguments = std::unordered_map<int, memory>;

  void add(std::string name, std::function<void()> run) {
    ways_.push_back({{std::move(name), 1e30}, std::move(run)});
  }
  void add_cpu_matmul();
  void add_sgemm();
  void add_matmul(const std::string& name, bool pack_left, bool pack_right);
  void add_inner_product();
  template <typename Primitive>
  void add_primitive(const std::string& name, const Primitive& primitive, Arguments arguments) {
    add(name, [this, primitive, arguments = std::move(arguments)] {
      primitive.execute(stream_, arguments);
    });
  }
  Tensor tensor(std::int64_t rows, std::int64_t columns, const Buffer& buffer, DType dtype) const {
    return {buffer.data(), dtype, {rows, columns}};
  }
  /// Memory in the layout a primitive asks for; its contents do not matter to the time.
  memory packed(const memory::desc& desc) {
    buffers_.push_back(
        std::make_unique<Buffer>(static_cast<std::int64_t>(desc.get_size()), dtype_));
    return memory(desc, engine_, buffers_.back()->data());
  }

  LinearShape shape_;
  LinearProduct product_;
  DType dtype_;
  DType out_dtype_;
  int threads_;
  CpuMatmul cpu_matmul_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  Buffer x_, w_, y_;  // the one that is the product's output is in out_dtype_
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<Variant> ways_;
};

dnnl::primitive_attr scratch_from_user() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

}  // namespace

std::vector<VariantTime> time_variants(const LinearShape& shape,
                                       LinearProduct product,
                                       DType dtype,
                                       int threads) {
  return Variants(shape, product, dtype, threads).measure();
}

double matmul_ceiling_seconds(const std::vector<LinearShape>& layers, DType dtype, int threads) {
  double seconds = 0.0;
  for (const LinearShape& layer : layers) {
    for (const LinearProduct product :
         {LinearProduct::kForward, LinearProduct::kBackwardInput, LinearProduct::kBackwardWeight}) {
      const std::vector<VariantTime> times = time_variants(layer, product, dtype, threads);
      const auto best = std::min_element(
          times.begin(), times.end(),
          [](const VariantTime& a, const VariantTime& b) { return a.seconds < b.seconds; });
      seconds += best->seconds * static_cast<double>(layer.count);
    }
  }
  return seconds;
}

namespace {

Variants::Variants(const LinearShape& shape, LinearProduct product, DType dtype, int threads)
    : shape_(shape),
      product_(product),
      dtype_(dtype),
      out_dtype_(product == LinearProduct::kBackwardWeight ? DType::kF32 : dtype),
      threads_(threads),
      cpu_matmul_(threads, loops_for(supported_isas().back())),
      x_(shape.tokens * shape.inputs * size_of(dtype), dtype),
      w_(shape.outputs * shape.inputs * size_of(out_dtype_), dtype),
      y_(shape.tokens * shape.outputs * size_of(dtype), dtype) {
  const OpenMpTeam team(threads_);
  add_cpu_matmul();
  if (dtype == DType::kF32) {
    add_sgemm();
  }
  add_matmul("matmul", false, false);
  add_matmul("matmul, right packed", false, true);
  add_matmul("matmul, both packed", true, true);
  add_inner_product();
}

std::vector<VariantTime> Variants::measure() {
  const OpenMpTeam team(threads_);
  const double start = seconds_now(threads_);
  for (int round = 0; round < kMostRounds; ++round) {
    for (Variant& way : ways_) {
      for (int turn = 0; turn < 2; ++turn) {  // the second finds its operands in the caches
        const double before = seconds_now(threads_);
        way.run();
        way.time.seconds = std::min(way.time.seconds, seconds_now(threads_) - before);
      }
    }
    if (round + 1 >= kFewestRounds && seconds_now(threads_) - start > kSecondsPerProduct) {
      break;
    }
  }
  std::vector<VariantTime> times;
  for (const Variant& way : ways_) {
    times.push_back(way.time);
  }
  return times;
}

void Variants::add_cpu_matmul() {
  const auto [n, i, o, count] = shape_;
  const Tensor x = tensor(n, i, x_, dtype_);
  const Tensor w = tensor(o, i, w_, out_dtype_);
  const Tensor y = tensor(n, o, y_, dtype_);
  switch (product_) {
    case LinearProduct::kForward:
      return add("CpuMatmul", [=, this] { cpu_matmul_.run(forward_product(x, w, {}, y)); });
    case LinearProduct::kBackwardInput:
      return add("CpuMatmul", [=, this] { cpu_matmul_.run(backward_input_product(y, w, x)); });
    case LinearProduct::kBackwardWeight:
      return add("CpuMatmul", [=, this] {
        cpu_matmul_.run(backward_weight_product(y, x, w, Write::kOverwrite));
      });
  }
}

void Variants::add_sgemm() {
  const auto [n, i, o, count] = shape_;
  auto* const x = static_cast<float*>(x_.data());
  auto* const w = static_cast<float*>(w_.data());
  auto* const y = static_cast<float*>(y_.data());
  switch (product_) {
    case LinearProduct::kForward:
      return add("sgemm", [=] { dnnl_sgemm('N', 'T', n, o, i, 1, x, i, w, i, 0, y, o); });
    case LinearProduct::kBackwardInput:
      return add("sgemm", [=] { dnnl_sgemm('N', 'N', n, i, o, 1, y, o, w, i, 0, x, i); });
    case LinearProduct::kBackwardWeight:
      return add("sgemm", [=] { dnnl_sgemm('T', 'N', o, i, n, 1, y, o, x, i, 0, w, i); });
  }
}

void Variants::add_matmul(const std::string& name, bool pack_left, bool pack_right) {
  using Tag = memory::format_tag;
  const auto type = dnnl_type(dtype_);
  const auto [n, i, o, count] = shape_;
  struct Operand {
    const Buffer* buffer;
    memory::dims dims;
    Tag tag;
  };
  Operand left{&x_, {n, i}, Tag::ab};
  Operand right{&w_, {i, o}, Tag::ba};
  Operand out{&y_, {n, o}, Tag::ab};
  if (product_ == LinearProduct::kBackwardInput) {
    left = {&y_, {n, o}, Tag::ab};
    right = {&w_, {o, i}, Tag::ab};
    out = {&x_, {n, i}, Tag::ab};
  } else if (product_ == LinearProduct::kBackwardWeight) {
    left = {&y_, {o, n}, Tag::ba};
    right = {&x_, {n, i}, Tag::ab};
    out = {&w_, {o, i}, Tag::ab};
  }
  const memory::desc out_desc(out.dims, dnnl_type(out_dtype_), out.tag);
  try {
    const dnnl::matmul::primitive_desc description(
        dnnl::matmul::desc({left.dims, type, pack_left ? Tag::any : left.tag},
                           {right.dims, type, pack_right ? Tag::any : right.tag}, out_desc),
        scratch_from_user(), engine_);
    add_primitive(
        name, dnnl::matmul(description),
        {{DNNL_ARG_SRC, pack_left ? packed(description.src_desc())
                                  : memory(description.src_desc(), engine_, left.buffer->data())},
         {DNNL_ARG_WEIGHTS,
          pack_right ? packed(description.weights_desc())
                     : memory(description.weights_desc(), engine_, right.buffer->data())},
         {DNNL_ARG_DST, memory(out_desc, engine_, out.buffer->data())},
         {DNNL_ARG_SCRATCHPAD, packed(description.scratchpad_desc())}});
  } catch (const dnnl::error&) {
    // This processor has no such kernel; the others are the ceiling.
  }
}

void Variants::add_inner_product() {
  using Tag = memory::format_tag;
  const auto type = dnnl_type(dtype_);
  const auto out_type = dnnl_type(out_dtype_);
  const auto [n, i, o, count] = shape_;
  const auto any = [](std::int64_t rows, std::int64_t columns, memory::data_type data_type) {
    return memory::desc({rows, columns}, data_type, Tag::any);
  };
  const auto attributes = scratch_from_user();
  const std::string name = "inner product, all packed";
  try {
    const dnnl::inner_product_forward::primitive_desc forward(
        dnnl::inner_product_forward::desc(dnnl::prop_kind::forward_training, any(n, i, type),
                                          any(o, i, type), any(n, o, type)),
        attributes, engine_);
    if (product_ == LinearProduct::kForward) {
      return add_primitive(name, dnnl::inner_product_forward(forward),
                           {{DNNL_ARG_SRC, packed(forward.src_desc())},
                            {DNNL_ARG_WEIGHTS, packed(forward.weights_desc())},
                            {DNNL_ARG_DST, packed(forward.dst_desc())},
                            {DNNL_ARG_SCRATCHPAD, packed(forward.scratchpad_desc())}});
    }
    if (product_ == LinearProduct::kBackwardInput) {
      const dnnl::inner_product_backward_data::primitive_desc backward(
          dnnl::inner_product_backward_data::desc(any(n, i, type), any(o, i, type),
                                                  any(n, o, type)),
          attributes, engine_, forward);
      return add_primitive(name, dnnl::inner_product_backward_data(backward),
                           {{DNNL_ARG_DIFF_SRC, packed(backward.diff_src_desc())},
                            {DNNL_ARG_WEIGHTS, packed(backward.weights_desc())},
                            {DNNL_ARG_DIFF_DST, packed(backward.diff_dst_desc())},
                            {DNNL_ARG_SCRATCHPAD, packed(backward.scratchpad_desc())}});
    }
    const dnnl::inner_product_backward_weights::primitive_desc backward(
        dnnl::inner_product_backward_weights::desc(any(n, i, type), any(o, i, out_type),
                                                   any(n, o, type)),
        attributes, engine_, forward);
    add_primitive(name, dnnl::inner_product_backward_weights(backward),
                  {{DNNL_ARG_SRC, packed(backward.src_desc())},
                   {DNNL_ARG_DIFF_WEIGHTS, packed(backward.diff_weights_desc())},
                   {DNNL_ARG_DIFF_DST, packed(backward.diff_dst_desc())},
                   {DNNL_ARG_SCRATCHPAD, packed(backward.scratchpad_desc())}});
  } catch (const dnnl::error&) {
    // This processor has no such kernel; the others are the ceiling.
  }
}

}  // namespace

}  // namespace dstrain::bench
