// How fast each operation of the CPU backend is at the sizes of GPT-2 124M and of the quickstart's
// model, and those of experts at a quarter of the widths of Mixtral 8x7B: GB/s of the bytes that
// must move, or GFLOP/s. `ops_bench [threads] [f32|bf16] [isa index]`.
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "kernels/attention.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/math/activation.h"
#include "kernels/math/sign_code.h"
#include "kernels/math/top_code.h"
#include "kernels/optimizers.h"
#include "kernels/routing.h"

namespace dstrain {
namespace {

struct Model {
  const char* name;
  std::int64_t batch, sequence, width, heads, kv_heads, head_dim, ffn, vocabulary;
  std::int64_t logit_rows;  ///< of one chunk of the head
  std::int64_t parameters;
  [[nodiscard]] std::int64_t tokens() const { return batch * sequence; }
};
constexpr Model kModels[] = {{"gpt2-124m", 4, 256, 768, 12, 12, 64, 3072, 50257, 256, 124439808},
                             {"quickstart", 8, 512, 384, 6, 2, 64, 1024, 256, 4096, 10000000}};

class Bench {
 public:
  Bench(int threads, CpuIsa isa, DType dtype)
      : one_thread_(threads == 1), backend_(make_cpu_backend(threads, isa)), dtype_(dtype) {
    fmt::print("{}, {}\n", backend_.device->description(), name_of(dtype));
  }
  void run(const Model& model);
  /// Beside one product of as many operations, of rows that all have the same matrix.
  void run_experts();
  /// Beside the product that computes as much from dense operands.
  void run_adapters();

 private:
  Tensor tensor(DType dtype, Shape shape, float scale = 1.0F) {
    memory_.push_back(backend_.device->allocate(shape.numel() * size_of(dtype), "bench"));
    const Tensor result{memory_.back().data(), dtype, shape};
    std::minstd_rand random(1);
    std::uniform_real_distribution<float> uniform(-scale, scale);
    for (std::int64_t i = 0; i < shape.numel(); ++i) {
      if (dtype == DType::kBF16) {
        static_cast<BF16*>(result.data())[i] = to_bf16(uniform(random));
      } else if (dtype == DType::kF32) {
        static_cast<float*>(result.data())[i] = uniform(random);
      }
    }
    return result;
  }
  Tensor ids(std::int64_t n, std::int64_t vocabulary) {
    const Tensor result = tensor(DType::kI32, {n});
    std::minstd_rand random(2);
    for (std::int64_t i = 0; i < n; ++i) {
      static_cast<std::int32_t*>(result.data())[i] =
          static_cast<std::int32_t>(random() % static_cast<unsigned long>(vocabulary));
    }
    return result;
  }
  /// The fastest of several runs, which a busy machine disturbs least, and `amount` per second.
  void time(const std::string& name,
            double amount,
            const char* unit,
            const std::function<void()>& work) {
    work();
    double best = 1e9;
    const double begin = now();
    for (int runs = 0; runs < 5 || now() - begin < 0.2; ++runs) {
      const double start = now();
      work();
      best = std::min(best, now() - start);
    }
    fmt::print("  {:28} {:9.1f} us  {:8.1f} {}\n", name, best * 1e6, amount / best * 1e-9, unit);
  }
  void bandwidth(const std::string& name, std::int64_t bytes, const std::function<void()>& work) {
    time(name, static_cast<double>(bytes), "GB/s", work);
  }

  /// Seconds; with one thread, those that it really ran.
  [[nodiscard]] double now() const {
    timespec time{};
    clock_gettime(one_thread_ ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

  bool one_thread_;
  Backend backend_;
  DType dtype_;
  std::vector<DeviceMemory> memory_;
};

void Bench::run(const Model& model) {
  fmt::print(" {}\n", model.name);
  Ops& ops = *backend_.ops;
  Stream& stream = backend_.device->compute_stream();
  const std::int64_t n = model.tokens();
  const std::int64_t e = size_of(dtype_);
  const Shape rows{n, model.width};
  const std::int64_t row_bytes = n * model.width * e;
  {
    const Tensor x = tensor(dtype_, rows);
    const Tensor delta = tensor(dtype_, rows, 1e-3F);
    const Tensor y = tensor(dtype_, rows);
    const Tensor dx = tensor(dtype_, rows);
    const Tensor weight = tensor(dtype_, {model.width});
    const Tensor stats = tensor(DType::kF32, {n, 2});
    const Tensor dweight = tensor(DType::kF32, {model.width});
    const Tensor dbias = tensor(DType::kF32, {model.width});
    bandwidth("norm_forward + residual", 4 * row_bytes, [&] {
      ops.norm_forward({NormKind::kLayerNorm, 1e-5F, x, delta, weight, weight, x, y, stats},
                       stream);
    });
    bandwidth("norm_backward, added", 4 * row_bytes, [&] {
      ops.norm_backward({NormKind::kLayerNorm, delta, x, weight, stats, dx, Write::kAdd, dweight,
                         dbias, Write::kAdd},
                        stream);
    });
    bandwidth("add", 3 * row_bytes, [&] { ops.add(x, delta, y, stream); });
  }
  {
    const Shape wide{n, model.ffn};
    const std::int64_t wide_bytes = n * model.ffn * e;
    const Tensor x = tensor(dtype_, wide, 3.0F);
    const Tensor y = tensor(dtype_, wide);
    const Tensor both = tensor(dtype_, {n, 2 * model.ffn}, 3.0F);
    const Tensor bias = tensor(DType::kF32, {model.ffn});
    const auto gelu = ActivationKind::kGeluTanh;
    bandwidth("gelu forward", 2 * wide_bytes, [&] { ops.activation_forward(gelu, x, y, stream); });
    bandwidth("gelu backward", 3 * wide_bytes,
              [&] { ops.activation_backward(gelu, x, y, y, stream); });
    bandwidth("swiglu forward", 3 * wide_bytes,
              [&] { ops.gated_activation_forward(ActivationKind::kSilu, both, y, stream); });
    bandwidth("swiglu backward", 5 * wide_bytes,
              [&] { ops.gated_activation_backward(ActivationKind::kSilu, both, y, both, stream); });
    bandwidth("bias gradient", wide_bytes,
              [&] { ops.linear_backward_bias(x, bias, Write::kAdd, stream); });
  }
  {
    const AttentionShape shape{model.batch, model.sequence, model.heads, model.kv_heads,
                               model.head_dim};
    const std::int64_t width = (model.heads + 2 * model.kv_heads) * model.head_dim;
    const Tensor qkv = tensor(dtype_, {n, width});
    const Tensor dqkv = tensor(dtype_, {n, width});
    const Tensor out = tensor(dtype_, {n, model.heads * model.head_dim});
    const Tensor dout = tensor(dtype_, {n, model.heads * model.head_dim});
    const Tensor sums = tensor(DType::kF32, {model.batch, model.heads, model.sequence});
    const Tensor delta = tensor(DType::kF32, {model.batch, model.heads, model.sequence});
    const Tensor angle = tensor(DType::kF32, {model.sequence, model.head_dim / 2});
    // Two products of T²/2 · D multiply-adds a head forward, five backward.
    const double product = static_cast<double>(model.batch * model.heads * model.sequence *
                                               model.sequence * model.head_dim);
    time("attention forward", 2 * product, "GFLOP/s", [&] {
      ops.attention_forward({packed_attention(shape, qkv), out, sums}, stream);
    });
    time("attention backward", 5 * product, "GFLOP/s", [&] {
      ops.attention_backward(packed_attention_backward(shape, qkv, out, sums, dout, delta, dqkv),
                             stream);
    });
    // What a ring's rank sees of an earlier one: all keys before all queries, which is twice as
    // much.
    const AttentionReach behind{.first_query = model.sequence};
    time("attention of part forward", 2 * 2 * product, "GFLOP/s", [&] {
      ops.attention_forward({packed_attention(shape, qkv, behind), out, sums}, stream);
    });
    time("attention of part backward", 2 * 5 * product, "GFLOP/s", [&] {
      ops.attention_backward(
          packed_attention_backward(shape, qkv, out, sums, dout, delta, dqkv, behind), stream);
    });
    const std::int64_t part_bytes = n * model.heads * (model.head_dim * e + 4);
    bandwidth("merge of two parts of attention", 3 * part_bytes,
              [&] { ops.merge_attention(shape, dout, delta, out, sums, stream); });
    bandwidth("rope", 2 * n * (model.heads + model.kv_heads) * model.head_dim * e,
              [&] { ops.rope(shape, qkv, angle, angle, {}, Pass::kForward, stream); });
  }
  {
    const std::int64_t v = model.vocabulary;
    const Tensor logits = tensor(dtype_, {model.logit_rows, v});
    const Tensor losses = tensor(DType::kF32, {model.logit_rows});
    const Tensor targets = ids(model.logit_rows, v);
    bandwidth("cross-entropy + gradient", 2 * model.logit_rows * v * e, [&] {
      ops.cross_entropy_forward_backward(logits, targets, v, {1.0F}, losses, stream);
    });
    const VocabSlice vocabulary{.first = 0, .vocab_size = v};
    const Tensor tokens = ids(n, v);
    const Tensor table = tensor(dtype_, {v, model.width});
    const Tensor dtable = tensor(DType::kF32, {v, model.width});
    const Tensor position = tensor(dtype_, {model.sequence, model.width});
    const Tensor dposition = tensor(DType::kF32, {model.sequence, model.width});
    const Tensor x = tensor(dtype_, rows);
    bandwidth("embedding forward", 2 * row_bytes, [&] {
      ops.embedding_forward(tokens, table, vocabulary, position, {}, model.sequence, x, stream);
    });
    bandwidth("embedding backward, added", row_bytes + 4 * n * model.width * 4, [&] {
      ops.embedding_backward(tokens, x, vocabulary, model.sequence, dtable, dposition, Write::kAdd,
                             Write::kAdd, stream);
    });
  }
  {
    const std::int64_t p = model.parameters;
    const Tensor gradient = tensor(DType::kF32, {p});
    const Tensor master = tensor(DType::kF32, {p});
    const Tensor m = tensor(DType::kF32, {p});
    const Tensor v = tensor(DType::kF32, {p});
    backend_.ops->zero(v, stream);
    const Tensor copy = dtype_ == DType::kBF16 ? tensor(dtype_, {p}) : Tensor{};
    const Tensor total = tensor(DType::kF64, {1});
    const AdamwStep step{.learning_rate = 1e-3F, .weight_decay = 0.1F};
    const OptimizerTensors state{.gradient = gradient,
                                 .master = master,
                                 .first_moment = m,
                                 .second_moment = v,
                                 .parameters = copy};
    bandwidth("adamw", p * (28 + (copy.empty() ? 0 : 2)), [&] { ops.update(step, state, stream); });
    bandwidth("sum_of_squares", p * 4,
              [&] { ops.sum_of_squares(gradient, total, Write::kOverwrite, stream); });
    bandwidth("zero", p * 4, [&] { ops.zero(gradient, stream); });
  }
  {
    // Eight ranks: what one codes of its gradient, and what another makes of their codes.
    constexpr std::int64_t kRanks = 8;
    const std::int64_t p = model.parameters / kRanks / 8 * 8 * kRanks;
    const Tensor gradient = tensor(DType::kF32, {p});
    const Tensor chunk = gradient.flat(0, p / kRanks);
    const Tensor squares = tensor(DType::kF64, {1});
    ops.sum_of_squares(gradient, squares, Write::kOverwrite, stream);
    const SignParts signs{
        .count = kRanks, .chunk = p / kRanks, .stride = (p / kRanks / 8 + 7) / 4 * 4, .signs = 4};
    const Tensor signs_coded = tensor(DType::kU8, {kRanks * signs.stride});
    bandwidth("encode_signs", p * 8 + p / 8,
              [&] { ops.encode_signs(signs, gradient, squares, signs_coded, stream); });
    bandwidth("sum_signs", p / kRanks * 4 + p / 8, [&] {
      ops.sum_signs(signs, signs_coded, 1.0F / kRanks, chunk, Write::kOverwrite, stream);
    });
    bandwidth("decode_signs", p * 4 + p / 8,
              [&] { ops.decode_signs(signs, signs_coded, gradient, stream); });

    // Again and again: what was sent before is 0 then, which is as quick to look at.
    const TopCode top;
    const Tensor top_coded = tensor(DType::kU8, {kRanks * top.bytes(p)});
    const Tensor message = top_coded.flat(0, top.bytes(p));
    bandwidth("encode_largest", p * 4, [&] { ops.encode_largest(top, gradient, message, stream); });
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      ops.encode_largest(top, gradient,
                         top_coded.flat(rank * top.bytes(p), (rank + 1) * top.bytes(p)), stream);
    }
    bandwidth("sum_largest", p * 4 + kRanks * top.bytes(p),
              [&] { ops.sum_largest(top, kRanks, top_coded, 1.0F / kRanks, gradient, stream); });
  }
  {
    const Tensor columns_NR = tensor(DType::kF32, {model.ffn, 4});
    bandwidth("orthonormalize_columns", model.ffn * 4 * 4 * 6,
              [&] { ops.orthonormalize_columns(columns_NR, 1e-8F, stream); });
  }
  memory_.clear();
}

void Bench::run_experts() {
  constexpr std::int64_t kTokens = 2048, kPerToken = 2, kExperts = 8, kWidth = 1024, kInner = 3584;
  constexpr std::int64_t kRows = kTokens * kPerToken;
  fmt::print(" 2 of 8 experts of {} x {}, {} tokens\n", kWidth, kInner, kTokens);
  Ops& ops = *backend_.ops;
  Stream& stream = backend_.device->compute_stream();

  // Experts are not equally busy.
  std::vector<std::int32_t> rows_of;
  for (std::int64_t expert = 0; expert < kExperts; ++expert) {
    rows_of.push_back(static_cast<std::int32_t>(kRows / kExperts + 64 * (expert - 3) - 32));
  }
  const Tensor slots = ids(kRows, kRows);
  const Tensor places = ids(kRows, kRows).view({kTokens, kPerToken});
  const Tensor weights = tensor(DType::kF32, {kTokens, kPerToken});
  const Tensor tokens = tensor(dtype_, {kTokens, kWidth});
  const Tensor x = tensor(dtype_, {kRows, kWidth});
  const Tensor y = tensor(dtype_, {kRows, kInner});
  const Tensor w = tensor(dtype_, {kExperts, kInner, kWidth});
  const Tensor dw = tensor(DType::kF32, {kExperts, kInner, kWidth});
  const Tensor w_of_all = w.rows(0, 1).view({kInner, kWidth});
  const Tensor dw_of_all = dw.rows(0, 1).view({kInner, kWidth});

  const double flops = 2.0 * static_cast<double>(kRows * kWidth * kInner);
  const auto product = [&](const char* name, const std::function<void()>& of_experts,
                           const std::function<void()>& of_all) {
    time(fmt::format("{}, experts", name), flops, "GFLOP/s", of_experts);
    time(fmt::format("{}, one matrix", name), flops, "GFLOP/s", of_all);
  };
  product(
      "forward", [&] { ops.grouped_forward(x, w, {}, rows_of, y, stream); },
      [&] { ops.linear_forward(x, w_of_all, {}, y, stream); });
  product(
      "backward input", [&] { ops.grouped_backward_input(y, w, rows_of, x, stream); },
      [&] { ops.linear_backward_input(y, w_of_all, x, stream); });
  product(
      "backward weight",
      [&] { ops.grouped_backward_weight(y, x, rows_of, dw, Write::kAdd, stream); },
      [&] { ops.linear_backward_weight(y, x, dw_of_all, Write::kAdd, stream); });
  const std::int64_t row_bytes = kWidth * size_of(dtype_);
  bandwidth("gather_rows", 2 * kRows * row_bytes,
            [&] { ops.gather_rows(tokens, slots, kPerToken, {}, x, stream); });
  bandwidth("sum_rows", (kRows + kTokens) * row_bytes,
            [&] { ops.sum_rows(x, places, weights, tokens, Write::kOverwrite, stream); });
  {
    constexpr std::int64_t kChosen = 8, kMany = 128;  // as Qwen3-30B-A3B
    const RouterRule rule{.per_token = kChosen, .normalised = true};
    const Tensor logits = tensor(DType::kF32, {kTokens, kMany}, 3.0F);
    const Tensor logsumexp = tensor(DType::kF32, {kTokens});
    const Tensor chosen = tensor(DType::kI32, {kTokens, kChosen});
    const Tensor shares = tensor(DType::kF32, {kTokens, kChosen});
    const Tensor counts = tensor(DType::kI32, {4, kMany});
    const Tensor d_logits = tensor(dtype_, {kTokens, kMany});
    bandwidth("choose_experts, 8 of 128", kTokens * kMany * 4, [&] {
      ops.choose_experts({.rule = rule,
                          .logits_NE = logits,
                          .logsumexp_N = logsumexp,
                          .chosen_NK = chosen,
                          .weights_NK = shares},
                         stream);
    });
    ops.measure_experts({.rule = rule,
                         .logits_NE = logits,
                         .logsumexp_N = logsumexp,
                         .chosen_NK = chosen,
                         .counts_BE = counts},
                        stream);
    bandwidth("choose_experts_backward", kTokens * kMany * (4 + size_of(dtype_)), [&] {
      ops.choose_experts_backward({.rule = rule,
                                   .logits_NE = logits,
                                   .logsumexp_N = logsumexp,
                                   .chosen_NK = chosen,
                                   .weights_NK = shares,
                                   .d_weights_NK = shares,
                                   .counts_BE = counts,
                                   .balance_scale = 1.0F,
                                   .d_logits_NE = d_logits},
                                  stream);
    });
  }
  memory_.clear();
}

void Bench::run_adapters() {
  constexpr std::int64_t kTokens = 512, kInputs = 1024, kOutputs = 2048, kStride = 4096;
  constexpr std::int64_t kRanks = 16;  // of adapters of the queries of Qwen3-0.6B
  fmt::print("\nadapters: {} tokens, {} inputs, {} of {} outputs, {} ranks\n", kTokens, kInputs,
             kOutputs, kStride, kRanks);
  Ops& ops = *backend_.ops;
  Stream& stream = backend_.device->compute_stream();
  const Tensor x = tensor(dtype_, {kTokens, kInputs});
  const Tensor wide = tensor(dtype_, {kTokens, kStride});
  const Columns y(wide, 0, kOutputs);
  const Tensor dense = tensor(dtype_, {kTokens, kOutputs});
  const Tensor h = tensor(dtype_, {kTokens, kRanks}, 0.01F);
  const Tensor a = tensor(dtype_, {kRanks, kInputs});
  const Tensor b = tensor(dtype_, {kOutputs, kRanks}, 0.01F);
  const Tensor da = tensor(DType::kF32, {kRanks, kInputs});
  const Tensor db = tensor(DType::kF32, {kOutputs, kRanks});
  const double of_inputs = 2.0 * kTokens * kInputs * kRanks;
  const double of_outputs = 2.0 * kTokens * kOutputs * kRanks;
  const auto flops = [&](const char* name, double operations, const std::function<void()>& work) {
    time(name, operations, "GFLOP/s", work);
  };
  flops("x · Aᵀ", of_inputs, [&] { ops.reduce_to_rank(x, a, false, 1.0F, h, stream); });
  flops("  as a product", of_inputs, [&] { ops.linear_forward(x, a, {}, h, stream); });
  flops("dy · B", of_outputs, [&] { ops.reduce_to_rank(y, b, true, 1.0F, h, stream); });
  flops("  as a product", of_outputs, [&] { ops.linear_backward_input(dense, b, h, stream); });
  flops("y += h · Bᵀ", of_outputs, [&] { ops.add_from_rank(h, b, true, y, stream); });
  flops("  as a product", of_outputs, [&] { ops.linear_forward(h, b, {}, dense, stream); });
  flops("dx += dh · A", of_inputs, [&] { ops.add_from_rank(h, a, false, x, stream); });
  flops("dB = dyᵀ · h", of_outputs,
        [&] { ops.rank_gradient(h, y, db, true, Write::kOverwrite, stream); });
  flops("  as a product", of_outputs,
        [&] { ops.linear_backward_weight(dense, h, db, Write::kOverwrite, stream); });
  flops("dA = dhᵀ · x", of_inputs,
        [&] { ops.rank_gradient(h, x, da, false, Write::kOverwrite, stream); });
  memory_.clear();
}

}  // namespace
}  // namespace dstrain

int main(int argc, char** argv) {
  using namespace dstrain;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  const DType dtype = argc > 2 && std::string(argv[2]) == "f32" ? DType::kF32 : DType::kBF16;
  const auto isas = supported_isas();
  const auto index = argc > 3 ? static_cast<std::size_t>(std::atoi(argv[3])) : isas.size() - 1;
  Bench bench(threads, isas.at(index), dtype);
  for (const Model& model : kModels) {
    bench.run(model);
  }
  bench.run_experts();
  bench.run_adapters();
}
