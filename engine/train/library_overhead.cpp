#include "engine/train/library_overhead.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "engine/checkpoint/device_parts.h"
#include "engine/comm/rendezvous.h"
#include "engine/config/arch/tensor_list.h"
#include "engine/train/batch_upload.h"
#include "engine/train/objective/sequence_exchange.h"
#include "engine/train/state_snapshot.h"

namespace dstrain {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr const char* kRewardModel = "reward model";
constexpr const char* kOfScoring = "formula: engine/generate/generation_plan.h";
constexpr const char* kOfTargets = "formula: engine/train/objective/sequence_exchange.h";

// On Debian 12 with glibc 2.36, libgomp 12.2 and oneDNN 2.6.3, on a Xeon with AVX-512 and AMX, huge
// pages by advice: RssAnon at the first line of main (0.9 MiB), with the arena allocated and the
// groups formed (1.4 MiB above the plan), and after step 1, for 1 to 16 threads.
constexpr const char* kMeasured =
    "measured: Debian 12, glibc 2.36, libgomp 12.2, oneDNN 2.6.3, AMX";
constexpr std::int64_t kProcess = 2 * kMiB;
constexpr std::int64_t kGeneratedCode = 7 * kMiB / 2;  // by oneDNN, and what describes it
// f32 products: oneDNN copies operands into buffers that it takes from the heap for each call, of
// up to 15.2 MiB; what the heap keeps of them depends on their order.
constexpr std::int64_t kF32Products = 47 * kMiB / 2;
constexpr std::int64_t kF32ProductsOfAThread = 5 * kMiB;
// 16-bit products in blocks (kernels/cpu/matmul_blocked.cpp) have scratch memory of fixed size: B
// packed for all; for each thread B packed, rows of A, sums, and oneDNN's own.
constexpr std::int64_t kPackedForAll = 16 * kMiB;
constexpr std::int64_t kBlocksOfAThread = 10 * kMiB;
// f16 products (kernels/cpu/matmul_packed.cpp): A packed for all; for each thread B packed and
// sums; and the sums of products whose terms come in slabs.
constexpr std::int64_t kPackedF16 = 10 * kMiB;
constexpr std::int64_t kPackedF16OfAThread = 6 * kMiB;
constexpr std::int64_t kMostTermsOfF16 = 2048;
constexpr std::int64_t kMostSumsOfF16 = 16 * kMiB;

// While a checkpoint is being written (engine/checkpoint): the file's buffer, and the text that
// lists the pieces, which rank 0 gathers from all and joins.
constexpr std::int64_t kFileBuffer = kMiB;
constexpr std::int64_t kTextOfAPiece = 610;  // bytes, measured for GPT-2's names
constexpr std::int64_t kCopiesOfText = 2;

/// Adds a part to a list if it has any bytes.
struct AddPart {
  std::vector<Overhead>& parts;
  void operator()(std::string what, std::int64_t bytes, std::string source) const {
    if (bytes > 0) {
      parts.push_back({std::move(what), bytes, std::move(source)});
    }
  }
};

/// Bytes that the products of one precision take.
std::int64_t product_bytes(DType compute, int threads) {
  switch (compute) {
    case DType::kBF16:
      return kPackedForAll + threads * kBlocksOfAThread;
    case DType::kF16:
      return kPackedF16 + threads * kPackedF16OfAThread;
    default:
      return kF32Products + threads * kF32ProductsOfAThread;
  }
}

DType compute_of(const RunPlan& plan) {
  return plan.memory.options().compute_dtype;
}

/// 16-bit products whose terms come in slabs, because a factor is larger than what is packed at
/// once, keep their sums in f32 in between: as much as the largest result, or of f16 a part of it.
std::int64_t slab_sum_bytes(const RunPlan& plan) {
  if (compute_of(plan) == DType::kF32) {
    return 0;
  }
  const bool is_bf16 = compute_of(plan) == DType::kBF16;
  const ModelSpec& model = plan.model;
  const std::int64_t ranks = plan.mesh.degree(Axis::kTensor);
  const std::int64_t width = model.hidden_size;
  const std::int64_t vocabulary = vocabulary_rows(model.vocab_size, ranks);
  const std::int64_t tokens = plan.batch.own_tokens();
  const auto rows_of = [&](const char* buffer) -> std::optional<std::int64_t> {
    const std::vector<BufferDecl>& buffers = plan.blueprint.buffers();
    const auto found = std::find_if(buffers.begin(), buffers.end(),
                                    [&](const BufferDecl& of) { return of.name == buffer; });
    return found == buffers.end() ? std::nullopt : std::optional(found->shape[0]);
  };
  const std::int64_t up = model.intermediate_size * (model.gated_mlp ? 2 : 1) / ranks;
  const std::int64_t qkv =
      (model.num_heads + 2 * model.num_key_value_heads) * model.head_dim / ranks;
  std::int64_t rows = 0;
  for (const auto& [terms, of_rows] :
       {std::pair{up, rows_of("mlp/d_pre").value_or(tokens)},  // of a tile
        {qkv, tokens},
        {vocabulary, rows_of("logits").value_or(0)}}) {
    if (is_bf16 ? terms > width && terms * width * size_of(DType::kBF16) > kPackedForAll
                : terms > kMostTermsOfF16) {
      rows = std::max(rows, of_rows);
    }
  }
  const std::int64_t sums = rows * width * size_of(DType::kF32);
  return is_bf16 ? sums : std::min(sums, kMostSumsOfF16);
}

/// The pool of scratch memory of the other operations: the largest that one of them leases.
std::int64_t operation_scratch_bytes(const RunPlan& plan, int threads) {
  constexpr std::int64_t kTile = 64;                   // queries or keys (attention_scratch.h)
  constexpr std::int64_t kAttentionTiles = 112 << 10;  // bytes, beside the whole sequence's
  constexpr std::int64_t kNormBlocks = 64;             // norm.cpp
  constexpr std::int64_t kBiasBlocks = 32;             // linear.cpp
  const ModelSpec& model = plan.model;
  const std::int64_t element = size_of(compute_of(plan));
  const ContextShape& context = plan.batch.context;
  const std::int64_t chunk = plan.batch.sequence / (context.ring * context.chunks());
  const std::int64_t keys = (chunk + kTile - 1) / kTile * kTile;
  const std::int64_t attention =
      threads *
      (keys * model.head_dim * (3 * element + 2 * size_of(DType::kF32)) + kAttentionTiles);
  const std::int64_t norm = kNormBlocks * 2 * model.hidden_size * size_of(DType::kF32);
  const std::int64_t bias =
      kBiasBlocks * size_of(DType::kF32) * std::max(model.intermediate_size, 3 * model.hidden_size);
  // low_rank.cpp: a factor in panels and a few rows, or all rows and a panel of each thread
  constexpr std::int64_t kPanel = 64;
  const std::int64_t widest =
      std::max(model.intermediate_size * (model.gated_mlp ? 2 : 1),
               (model.num_heads + 2 * model.num_key_value_heads) * model.head_dim) +
      kPanel;
  const std::int64_t low_rank = plan.shape.adapters.rank * size_of(DType::kF32) *
                                (std::max(widest, plan.batch.own_tokens()) + threads * kPanel);
  return std::max({attention, norm, bias, low_rank});
}

/// The operands of an 8-bit product, widened to bf16 (kernels/cpu/fp8.cpp): the largest first
/// operand and the largest second one.
std::int64_t widened_f8_bytes(const RunPlan& plan) {
  if (!plan.fp8) {
    return 0;
  }
  const ModelSpec& model = plan.model;
  const std::int64_t ranks = plan.mesh.degree(Axis::kTensor);
  const std::int64_t kv_heads = std::max<std::int64_t>(1, model.num_key_value_heads / ranks);
  const std::int64_t query = model.num_heads / ranks * model.head_dim;
  const std::int64_t inner = model.intermediate_size / ranks;
  const std::int64_t tokens = plan.batch.own_tokens();
  std::int64_t first = 0;
  std::int64_t second = 0;
  for (const auto& [inputs, outputs] :
       {std::pair{model.hidden_size, query + 2 * kv_heads * model.head_dim},
        {query, model.hidden_size},
        {model.hidden_size, inner * (model.gated_mlp ? 2 : 1)},
        {inner, model.hidden_size}}) {
    first = std::max(first, tokens * std::max(inputs, outputs));
    second = std::max({second, outputs * inputs, inputs * tokens});
  }
  return (first + second) * size_of(DType::kBF16);
}

std::int64_t checkpoint_bytes(const RunPlan& plan) {
  std::int64_t parameters = 0;
  for (const UnitDecl& unit : plan.blueprint.units()) {
    parameters += static_cast<std::int64_t>(unit.params.size());
  }
  const auto has = [](MomentExtent extent) { return extent == MomentExtent::kNone ? 0 : 1; };
  const MemoryOptions& options = plan.memory.options();
  const int others = (options.third_moment ? 1 : 0) +
                     (options.signs || options.compression ? 2 : 0);  // and unsent
  const std::int64_t pieces =
      parameters * (1 + has(plan.moments.first) + has(plan.moments.second) + others);
  const bool is_first = plan.rank == 0;
  const std::int64_t shares = is_first ? 1 + plan.mesh.world_size() : 1;
  return kFileBuffer + kCopiesOfText * shares * pieces * kTextOfAPiece;
}

/// Sizes of the rank's groups that have more than one member: for tensors on the device, and for
/// host memory.
struct GroupSizes {
  std::vector<int> device;
  std::vector<int> host;
};
GroupSizes group_sizes(const RunPlan& plan) {
  GroupSizes sizes;
  for (const GroupPlan& group : plan.groups) {
    if (group.size() > 1) {
      (group.space == Space::kHost ? sizes.host : sizes.device).push_back(group.size());
    }
  }
  return sizes;
}

std::int64_t message_bytes(const std::vector<int>& sizes, const RunPlan& plan) {
  std::int64_t bytes = 0;
  for (const int size : sizes) {
    bytes += host_message_bytes(size, plan.wire_security);
  }
  return bytes;
}

std::int64_t scoring_bytes(const RunPlan& plan) {
  return plan.scoring ? plan.scoring->memory.bytes() : 0;
}

}  // namespace

std::vector<Overhead> cpu_library_overhead(const RunPlan& plan, int threads) {
  std::vector<Overhead> parts;
  const AddPart add{parts};
  add("process and libraries", kProcess + kGeneratedCode, kMeasured);
  add(fmt::format("matrix products, {} thread{}", threads, threads == 1 ? "" : "s"),
      product_bytes(compute_of(plan), threads) +
          (plan.fp8 && compute_of(plan) == DType::kF32 ? product_bytes(DType::kBF16, threads) : 0),
      kMeasured);
  add("sums of matrix products in slabs", slab_sum_bytes(plan),
      "formula: kernels/cpu/matmul_blocked.cpp");
  add("scratch of other operations", operation_scratch_bytes(plan, threads),
      "formula: the largest of attention, norm, bias and adapters (kernels/cpu)");
  add("8-bit operands, widened", widened_f8_bytes(plan), "formula: kernels/cpu/fp8.cpp");
  add("losses and weights of targets", SequenceExchange::host_bytes(plan), kOfTargets);
  add(kRewardModel, scoring_bytes(plan), kOfScoring);
  const GroupSizes sizes = group_sizes(plan);
  const std::size_t groups = sizes.device.size() + sizes.host.size();
  add(fmt::format("messages of {} group{}", groups, groups == 1 ? "" : "s"),
      message_bytes(sizes.device, plan) + message_bytes(sizes.host, plan),
      "formula: engine/comm/peer_mesh.cpp");
  const bool reads_disk = plan.memory.bytes(Space::kDisk) > 0;
  add("writing checkpoints",
      checkpoint_bytes(plan) + (reads_disk ? 2 * DeviceParts::kPartBytes : 0),
      "formula: engine/checkpoint");
  add("copy that checkpoints are written from",
      plan.saves_in_background() ? snapshot_bytes(plan) : 0,
      "checkpoint.async: engine/train/state_snapshot.h");
  return parts;
}

std::vector<Overhead> cuda_library_overhead(const RunPlan& plan) {
  // On an H200 (tests/golden/gpu-figures.md) 577 to 645 MiB are used beside the plan, most with
  // graphs and with offloading; the workspace below is part of them. Published of others: 287 MB to
  // 484 MiB.
  constexpr std::int64_t kContext = 613 * kMiB;
  // cuBLAS's documentation recommends this much on Hopper.
  constexpr std::int64_t kMatrixWorkspace = 32 * kMiB;
  // A channel of NCCL holds, for each neighbour, a buffer to receive into and a smaller one to send
  // from: 10 MiB and 2 MiB as allocated on H100s (NCCL, issue 1685), of which 4 MiB are
  // NCCL_BUFFSIZE. 24 channels and two neighbours are 576 MiB; measured on 4 A100s with NVLink were
  // 544 MB and 688 MB for groups of two and four (NCCL, issue 964).
  constexpr std::int64_t kChannels = 24;
  constexpr std::int64_t kNeighbours = 2;
  constexpr std::int64_t kBuffersOfANeighbour = (10 + 2) * kMiB;

  std::vector<Overhead> parts;
  const AddPart add{parts};
  add("CUDA context, kernels and scratch", kContext, "measured: tests/golden/gpu-figures.md");
  add("cuBLASLt workspace", kMatrixWorkspace,
      "published, not measured here: cuBLAS, cublasSetWorkspace, for sm_90");
  add(kRewardModel, scoring_bytes(plan), kOfScoring);
  const auto groups = static_cast<std::int64_t>(group_sizes(plan).device.size());
  add(fmt::format("NCCL, {} communicator{}", groups, groups == 1 ? "" : "s"),
      groups * kChannels * kNeighbours * kBuffersOfANeighbour,
      "published, not measured here: NCCL issues 964 and 1685");
  return parts;
}

std::vector<Overhead> cuda_host_overhead(const RunPlan& plan) {
  std::vector<Overhead> parts;
  const AddPart add{parts};
  add("process, without CUDA's own", kProcess, kMeasured);
  add("inputs and targets of two micro-batches",
      2 * BatchUpload::host_bytes(plan.batch.micro_batch * plan.batch.sequence,
                                  plan.batch.documents, plan.batch.context),
      "formula: engine/train/batch_upload.h");
  add("losses and weights of targets", SequenceExchange::host_bytes(plan), kOfTargets);
  const std::vector<int> sizes = group_sizes(plan).host;
  add(fmt::format("messages of {} group{}", sizes.size(), sizes.size() == 1 ? "" : "s"),
      message_bytes(sizes, plan), "formula: engine/comm/peer_mesh.cpp");
  add("writing checkpoints", checkpoint_bytes(plan) + 2 * DeviceParts::kPartBytes,
      "formula: engine/checkpoint");
  add("copy that checkpoints are written from",
      plan.saves_in_background() ? snapshot_bytes(plan) : 0,
      "checkpoint.async: engine/train/state_snapshot.h");
  return parts;
}

std::int64_t total_bytes(std::span<const Overhead> parts) {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0},
                         [](std::int64_t sum, const Overhead& part) { return sum + part.bytes; });
}

}  // namespace dstrain
