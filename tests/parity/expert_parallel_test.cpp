// Ranks that hold other experts, against one rank that has them all, with every other way of
// sharing a step, sequences included. What travels is what is planned, entry by entry; of rows, all
// ranks together send as many as are planned.
//
// Public reports of silently wrong gradients at this place, each of which these layouts would show:
// PyTorch 160285 (gradients twice as large over two expert-parallel ranks), Megatron-LM 5047 (the
// auxiliary loss depends on tensor parallelism), DeepSpeed 8195.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/arch/tensor_list.h"
#include "tests/harness/sweep.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/tiny_family.h"
#include "tests/parity/whole_state.h"

namespace dstrain::test {
namespace {

const std::vector<std::string> kExpertFamilies{"mixtral", "qwen3_moe",   "olmoe",
                                               "gpt_oss", "deepseek_v2", "deepseek_v3"};

TinyOptions experts_of(const std::string& family) {
  TinyOptions options = tiny_experts(family);
  options.steps = 10;
  // With it no gate comes so near its limit that rounding decides whether it has a gradient.
  if (family == "gpt_oss") options.seed = 1237;
  return options;
}

/// Elements of rows that ranks sent to experts and back.
std::int64_t rows_sent(const std::vector<TinyRun>& runs) {
  std::int64_t sent = 0;
  for (const TinyRun& run : runs) {
    for (const CollectiveLog::Entry& entry : run.traffic) {
      sent += entry.purpose == Purpose::kExperts && entry.dtype != DType::kI32 ? entry.elements : 0;
    }
  }
  return sent;
}

void check_follows(const std::vector<TinyRun>& runs, const TinyRun& reference) {
  for (const TinyRun& run : runs) {
    CHECK(worst_relative(run.losses, reference.losses) < 1e-5);
    CHECK(worst_relative(run.grad_norms, reference.grad_norms) < 1e-5);
    CHECK(run.unplanned_traffic == "");
    CHECK(run.arena_spaces == run.plan_spaces);
  }
}

/// What steps say of their experts is of all tokens, whichever ranks have these.
void check_same_routing(const std::vector<LayerRouting>& found,
                        const std::vector<LayerRouting>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t layer = 0; layer < expected.size(); ++layer) {
    CHECK(found[layer].tokens == expected[layer].tokens);
    CHECK(found[layer].chosen == expected[layer].chosen);
    REQUIRE(found[layer].balance_loss.has_value() == expected[layer].balance_loss.has_value());
    if (expected[layer].balance_loss) {
      CHECK(*found[layer].balance_loss == Approx(*expected[layer].balance_loss).epsilon(1e-5));
    }
  }
}

TEST_CASE("ranks that hold other experts follow the one that has them all", "[parity][experts]") {
  for (const std::string& family : kExpertFamilies) {
    const TinyOptions alone = experts_of(family);
    const TinyRun reference = train_tiny(alone);
    CHECK(reference.losses.back() < reference.losses.front());
    for (const int ranks : {2, 4}) {
      for (const int size : {2, 4}) {
        if (size > ranks) continue;
        for (const int zero : {0, 1, 2, 3}) {
          CAPTURE(family, ranks, size, zero);
          TinyOptions shared = alone;
          shared.micro_batch = 8 / ranks;
          shared.zero_stage = zero;
          shared.expert_parallel.size = size;
          const std::vector<TinyRun> runs = train_ranks(ranks, shared);
          check_follows(runs, reference);
          const TinyRun& first = runs.front();
          const auto& model = *alone.model;
          const std::int64_t rows = 8 * alone.sequence * model.experts.per_token;
          const std::int64_t layers = model.expert_layers.empty() ? 2 : 1;
          CHECK(rows_sent(runs) == layers * rows * (4 * model.hidden_size + 2));
          CHECK(first.losses == runs.back().losses);
        }
      }
    }
  }
}

/// Eight ranks, or four: with tensor (and sequence) parallelism, in a pipeline, computed again.
TEST_CASE("other experts go with every other way of sharing a step", "[parity][experts][slow]") {
  int met = 0;
  for (const std::string& family : kExpertFamilies) {
    const TinyOptions alone = experts_of(family);
    const TinyRun reference = train_tiny(alone);
    for (const int size : {2, 4}) {
      for (const int zero : {0, 1, 2, 3}) {
        for (int other = 0; other < 4; ++other) {
          if (met++ % testing::one_in_if_sanitized(5) != 0) continue;
          TinyOptions shared = alone;
          shared.zero_stage = zero;
          shared.expert_parallel.size = size;
          int ranks = 2 * size;
          if (other == 0) {
            shared.tensor_parallel = {.size = 2, .sequence_parallel = zero % 2 == 1};
            shared.micro_batch = 8 / size;
          } else if (other == 1) {
            shared.pipeline = {.stages = 2};
            shared.micro_batch = 1;
            shared.accumulation = 8 / size;
          } else {
            ranks = size;
            shared.micro_batch = 1;
            shared.accumulation = 8 / size;
            shared.recompute.granularity =
                other == 2 ? RecomputeGranularity::kFull : RecomputeGranularity::kSelective;
            if (zero == 3) shared.block_order = BlockOrder::kVertical;
          }
          CAPTURE(family, size, zero, other);
          check_follows(train_ranks(ranks, shared), reference);
        }
      }
    }
  }
}

/// Experts take the tokens that a rank has; the auxiliary loss is of whole sequences.
TEST_CASE("ranks that share sequences share experts as one rank has them", "[parity][experts]") {
  const std::vector<std::pair<const char*, ContextParallelConfig>> kinds{
      {"ring", {.size = 2, .order = ContextOrder::kContiguous}},
      {"zigzag", {.size = 2}},
      {"ulysses", {.size = 2, .kind = ContextKind::kUlysses}},
      {"zigzag of 4", {.size = 4}},
      {"usp", {.size = 4, .kind = ContextKind::kUsp, .ulysses_size = 2}}};
  int zero = 0;
  int met = 0;
  for (const std::string& family : kExpertFamilies) {
    for (const bool documents : {false, true}) {
      TinyOptions alone = experts_of(family);
      alone.sequence = 16;
      alone.micro_batch = 4;
      // At a limit that binds gradients jump, so that rounding of merged parts would decide them.
      if (family == "gpt_oss") alone.model->feed_forward_limit = 7.0F;
      if (documents) alone.documents = {.end = 3, .attention = true, .masks_borders = true};
      const TinyRun reference = train_tiny(alone);
      CHECK(reference.losses.back() < reference.losses.front());
      for (const auto& [name, kind] : kinds) {
        for (int size = 1; size <= kind.size; size *= 2) {
          zero = (zero + 1) % 4;
          if (met++ % testing::one_in_if_sanitized(7) != 0) continue;
          CAPTURE(family, documents, name, size, zero);
          TinyOptions shared = alone;
          shared.context_parallel = kind;
          shared.zero_stage = zero;
          shared.expert_parallel.size = size;
          check_follows(train_ranks(kind.size, shared), reference);
        }
      }
      for (int other = 0; other < 3; ++other) {  // eight ranks, or four
        zero = (zero + 1) % 4;
        if (met++ % testing::one_in_if_sanitized(5) != 0) continue;
        CAPTURE(family, documents, other, zero);
        TinyOptions shared = alone;
        shared.zero_stage = zero;
        shared.context_parallel = {.size = 2};
        shared.expert_parallel.size = 2;
        shared.micro_batch = 2;
        if (other == 0) {
          shared.tensor_parallel = {.size = 2, .sequence_parallel = documents};
        } else if (other == 1) {
          shared.pipeline = {.stages = 2};
          shared.micro_batch = 1;
          shared.accumulation = 2;
        } else {
          shared.expert_parallel.size = 4;
          shared.recompute.granularity = RecomputeGranularity::kFull;
        }
        check_follows(train_ranks(other == 2 ? 4 : 8, shared), reference);
      }
    }
  }
}

/// Four samples on as many ranks as tensor parallelism leaves; fewer samples than ranks share them
/// have rows that begin within a sequence.
TEST_CASE("whole experts take the tokens of each tensor-parallel rank", "[parity][experts]") {
  int met = 0;
  for (const std::string& family : kExpertFamilies) {
    for (const std::int64_t samples : {4, 1, 3}) {
      TinyOptions alone = experts_of(family);
      alone.sequence = 16;
      alone.micro_batch = samples;
      alone.steps = 6;
      // At a limit that binds gradients jump, so that rounding of sums over ranks would decide
      // them.
      if (family == "gpt_oss") alone.model->feed_forward_limit = 7.0F;
      const TinyRun reference = train_tiny(alone);
      for (const int tensor : {2, 4}) {
        for (int size = 1; size <= tensor; size *= 2) {
          const int zero = met % 4;
          if (met++ % testing::one_in_if_sanitized(9) != 0) continue;
          CAPTURE(family, samples, tensor, size, zero);
          TinyOptions shared = alone;
          shared.zero_stage = zero;
          shared.tensor_parallel = {.size = tensor, .sequence_parallel = true};
          shared.expert_parallel = {.size = size, .tensor_size = 1};
          const std::vector<TinyRun> runs = train_ranks(tensor, shared);
          check_follows(runs, reference);
          CHECK(runs.front().routing.size() == reference.routing.size());
          for (std::size_t step = 0; step < reference.routing.size(); ++step) {
            check_same_routing(runs.back().routing[step], reference.routing[step]);
          }
        }
      }
    }
  }
}

/// Elements of activations that a rank gathers and scatters in a step.
std::int64_t activations_sent(const TinyRun& run) {
  std::int64_t sent = 0;
  for (const CollectiveLog::Entry& entry : run.traffic) {
    const bool is_shared = entry.op == Op::kAllGather || entry.op == Op::kReduceScatter;
    sent += is_shared && entry.purpose == Purpose::kActivation ? entry.elements : 0;
  }
  return sent;
}

TEST_CASE("nothing is gathered for whole experts, and ZeRO changes no bit of their losses",
          "[parity][experts]") {
  for (const std::string& family : kExpertFamilies) {
    CAPTURE(family);
    TinyOptions cut = experts_of(family);
    cut.sequence = 16;
    cut.micro_batch = 3;
    cut.steps = 1;
    cut.tensor_parallel = {.size = 4, .sequence_parallel = true};
    TinyOptions whole = cut;
    whole.expert_parallel.tensor_size = 1;
    const TinyRun in_parts = train_ranks(4, cut).front();
    const TinyRun undivided = train_ranks(4, whole).front();
    // Before the feed-forward, and behind it; in backward before it twice, and behind it.
    const std::int64_t layers = cut.model->expert_layers.empty() ? 2 : 1;
    CHECK(activations_sent(in_parts) - activations_sent(undivided) ==
          layers * 5 * cut.micro_batch * cut.sequence * cut.model->hidden_size);
    // Two ranks have each expert, so that a gradient has two parts, in whichever order.
    whole.steps = 6;
    whole.expert_parallel.size = 2;
    const std::vector<double> losses = train_ranks(4, whole).front().losses;
    for (const int zero : {1, 2, 3}) {
      CAPTURE(zero);
      whole.zero_stage = zero;
      CHECK(train_ranks(4, whole).front().losses == losses);
    }
  }
}

/// Eight ranks, or four: with shared sequences, other samples, in a pipeline, computed again.
TEST_CASE("whole experts go with every other way of sharing a step", "[parity][experts][slow]") {
  int met = 0;
  for (const std::string& family : kExpertFamilies) {
    TinyOptions alone = experts_of(family);
    alone.sequence = 16;
    alone.micro_batch = 4;
    alone.steps = 6;
    // At a limit that binds gradients jump, so that rounding of merged parts would decide them.
    if (family == "gpt_oss") alone.model->feed_forward_limit = 7.0F;
    const TinyRun reference = train_tiny(alone);
    for (const int size : {1, 2, 4, 8}) {
      for (int other = 0; other < 7; ++other) {
        const int zero = met % 4;
        if (met++ % testing::one_in_if_sanitized(9) != 0) continue;
        TinyOptions shared = alone;
        shared.zero_stage = zero;
        shared.tensor_parallel = {.size = 2, .sequence_parallel = true};
        shared.expert_parallel = {.size = size, .tensor_size = 1};
        int ranks = 4;
        if (other == 0) {
          shared.context_parallel = {.size = 2};
        } else if (other == 1) {
          shared.context_parallel = {.size = 2, .kind = ContextKind::kUlysses};
          shared.micro_batch = 2;
          ranks = 8;
        } else if (other == 2) {
          shared.micro_batch = 1;
          ranks = 8;
        } else if (other == 3) {
          shared.pipeline = {.stages = 2};
          shared.micro_batch = 1;
          shared.accumulation = 2;
          ranks = 8;
        } else if (other == 4) {
          shared.tensor_parallel.size = 4;
          shared.context_parallel = {.size = 2};
          ranks = 8;
        } else {
          shared.micro_batch = 1;
          shared.accumulation = 2;
          shared.recompute.granularity =
              other == 5 ? RecomputeGranularity::kFull : RecomputeGranularity::kSelective;
          if (zero % 2 == 1) shared.block_order = BlockOrder::kVertical;
        }
        if (ranks / shared.pipeline.stages % size != 0) continue;
        CAPTURE(family, size, zero, other);
        check_follows(train_ranks(ranks, shared), reference);
      }
    }
  }
}

/// Rows of an expert come in the order of the samples, whichever ranks have these.
TEST_CASE("other experts add up what one rank adds up, bit for bit", "[parity][experts]") {
  TinyOptions shared = experts_of("mixtral");
  shared.micro_batch = 4;
  shared.steps = 1;
  shared.gradient_clipping = 0.0;
  shared.optimizer.kind = OptimizerKind::kSgd;
  shared.expert_parallel.size = 2;
  TinyOptions alone = shared;
  alone.micro_batch = 8;
  alone.expert_parallel.size = 1;
  const auto of_last_experts = [](const std::vector<TinyRun>& runs) {
    std::map<std::pair<std::string, std::int64_t>, std::vector<float>> values;
    for (const TinyRun& run : runs) {
      for (const HeldPiece& held : run.held) {
        if (held.state == "parameter" && held.piece.tensor.starts_with("blocks.1.mlp.experts.")) {
          values[{held.piece.tensor, held.piece.flat.begin}] = held.values;
        }
      }
    }
    return values;
  };
  const auto expected = of_last_experts(train_ranks(1, alone));
  CHECK(expected.size() == 8 * 3);
  CHECK((of_last_experts(train_ranks(2, shared)) == expected));
}

WholeState parameters_of(const std::vector<TinyRun>& runs) {
  std::vector<std::vector<HeldPiece>> parameters;
  for (const TinyRun& run : runs) {
    std::vector<HeldPiece>& of_rank = parameters.emplace_back();
    std::copy_if(run.held.begin(), run.held.end(), std::back_inserter(of_rank),
                 [](const HeldPiece& held) { return held.state == "parameter"; });
  }
  std::vector<std::string> faults;
  WholeState whole = whole_state(parameters, faults);
  CHECK(faults == std::vector<std::string>{});
  return whole;
}

/// The router's among them, which has three parts: through weights, and of the auxiliary loss.
TEST_CASE("every gradient is as large over ranks with other experts as on one",
          "[parity][experts]") {
  for (const std::string& family : kExpertFamilies) {
    TinyOptions alone = experts_of(family);
    alone.sequence = 16;
    alone.micro_batch = 8;
    alone.steps = 1;
    alone.gradient_clipping = 0.0;
    alone.optimizer.kind = OptimizerKind::kSgd;
    alone.optimizer.weight_decay = 0.0;
    TinyOptions still = alone;
    still.learning_rate = 0.0;
    alone.learning_rate = 1e6;  // so that rounding of the sum is nothing
    TinyOptions other_samples = alone;
    other_samples.micro_batch = 4;
    other_samples.expert_parallel.size = 2;
    TinyOptions other_tokens = alone;
    other_tokens.context_parallel = {.size = 2};
    TinyOptions both = other_tokens;
    both.expert_parallel.size = 2;
    TinyOptions streams = alone;
    streams.tensor_parallel = {.size = 2, .sequence_parallel = true};
    streams.expert_parallel.tensor_size = 1;
    TinyOptions dealt_streams = streams;
    dealt_streams.expert_parallel.size = 2;
    const WholeState before = parameters_of(train_ranks(1, still));
    const WholeState one = parameters_of(train_ranks(1, alone));
    REQUIRE(one.size() == before.size());
    for (const TinyOptions& shared : {other_samples, other_tokens, both, streams, dealt_streams}) {
      const WholeState two = parameters_of(train_ranks(2, shared));
      REQUIRE(two.size() == before.size());
      for (const auto& [name, from] : before) {
        CAPTURE(family, name, shared.context_parallel.size, shared.expert_parallel.size,
                shared.tensor_parallel.size);
        if (is_balancing_bias(name)) {  // moved by loads, which all layouts count alike
          CHECK(two.at(name) == one.at(name));
          CHECK(std::any_of(from.begin(), from.end(), [](float moved) { return moved != 0.0F; }));
          continue;
        }
        double difference = 0.0;
        double norm = 0.0;
        for (std::size_t i = 0; i < from.size(); ++i) {
          const double gradient = static_cast<double>(one.at(name)[i]) - from[i];
          difference += std::pow(static_cast<double>(two.at(name)[i]) - one.at(name)[i], 2);
          norm += std::pow(gradient, 2);
        }
        CHECK(norm > 0.0);
        CHECK(std::sqrt(difference) <= 1e-5 * std::sqrt(norm));
      }
    }
  }
}

}  // namespace
}  // namespace dstrain::test
