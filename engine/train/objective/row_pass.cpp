#include "engine/train/objective/row_pass.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/core/caller_stream.h"

namespace dstrain {
namespace {

/// Minimises nothing.
class Listener final : public WeighingObjective {
 public:
  Listener(std::int64_t sequence_T, const TakeRow& take) : sequence_T_(sequence_T), take_(take) {}

  [[nodiscard]] double gradient_scale(double /*scale*/, const StepSize& /*step*/) const override {
    return 0.0;
  }
  [[nodiscard]] double token_scale(double /*scale*/, const StepSize& /*step*/) const override {
    return 0.0;
  }
  [[nodiscard]] std::int64_t targets(const StepSize& /*step*/) const override { return 1; }
  [[nodiscard]] double mean_loss(double loss_sum, std::int64_t /*counted*/) const override {
    return loss_sum;
  }
  void begin_step(std::int64_t /*start_sample*/, std::int64_t /*samples*/) override {}
  void weigh(const SequenceLosses& losses, const SequenceWeights& /*weights*/) override {
    const auto T = static_cast<std::size_t>(sequence_T_);
    const auto row_of = [T](std::span<const float> all, std::size_t row) {
      return all.empty() ? all : all.subspan(row * T, T);
    };
    for (std::int64_t b = 0; b < losses.counted_samples; ++b) {
      const auto row = static_cast<std::size_t>(b);
      take_(losses.first_sample + b, {.nats_T = row_of(losses.found.nats_BT, row),
                                      .values_T = row_of(losses.found.values_BT, row)});
    }
  }
  ObjectiveSums take_sums() override { return {}; }

 private:
  std::int64_t sequence_T_;
  const TakeRow& take_;
};

}  // namespace

bool pass_over_rows(Engine& engine,
                    std::int64_t rows,
                    const ReadRow& read,
                    const TakeRow& take,
                    const GoesOn& goes_on) {
  const BatchPlan& batch = engine.plan().batch;
  const bool tells = engine.tells_losses();
  const TakeRow take_once = [&](std::int64_t row, const RowNumbers& found) {
    if (tells) take(row, found);
  };
  std::unique_ptr<Objective> objective =
      engine.set_objective(std::make_unique<Listener>(batch.sequence, take_once));
  const auto T = static_cast<std::size_t>(batch.sequence);
  const LoadBatch load = [&](std::int64_t first, std::span<std::int32_t> inputs,
                             std::span<std::int32_t> targets) {
    for (std::size_t row = 0; row * T < inputs.size(); ++row) {
      // A micro-batch that reaches past the end is filled up with the last.
      read(std::min(first + static_cast<std::int64_t>(row), rows - 1), inputs.subspan(row * T, T),
           targets.subspan(row * T, T));
    }
  };
  const std::int64_t at_once = batch.micro_batch * batch.data_parallel;
  std::int64_t begin = 0;
  bool is_asked_to_end = false;
  for (; begin < rows && !is_asked_to_end; begin += at_once) {
    const std::int64_t first = begin + batch.data_rank * batch.micro_batch;
    engine.evaluate(load, std::min(first, rows - 1),
                    std::clamp<std::int64_t>(rows - first, 0, batch.micro_batch));
    is_asked_to_end = goes_on && !goes_on();
  }
  engine.set_objective(std::move(objective));
  return begin >= rows;
}

void add_over_ranks(std::vector<double>& numbers, Communicator& world) {
  CallerStream host;
  const auto size = static_cast<std::int64_t>(numbers.size());
  world.all_reduce({numbers.data(), DType::kF64, Shape{size}}, ReduceOp::kSum, Purpose::kControl,
                   host);
}

}  // namespace dstrain
