#include "engine/train/objective/reference_log_probabilities.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/base/amount_text.h"
#include "engine/checkpoint/safetensors.h"
#include "kernels/core/caller_stream.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr std::chrono::seconds kTellEvery{10};

/// Notes what the answers of some sequences lose; nothing is minimised.
class Recorder final : public WeighingObjective {
 public:
  Recorder(const BatchLoader& data,
           const std::vector<DrawnSequence>& sequences,
           std::int64_t sequence_T,
           std::vector<std::vector<double>>& found)
      : data_(data), sequences_(sequences), sequence_T_(sequence_T), found_(found) {}

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
  void weigh(const SequenceLosses& losses, std::span<float> /*weights*/) override {
    for (std::int64_t b = 0; b < losses.counted_samples; ++b) {
      const DrawnSequence& drawn = sequences_[static_cast<std::size_t>(losses.first_sample + b)];
      const auto nats = losses.nats_BT.subspan(static_cast<std::size_t>(b * sequence_T_),
                                               static_cast<std::size_t>(sequence_T_));
      for (const PlacedSample& sample : data_.sequences(drawn.source).samples(drawn.index)) {
        double& sum = found_[static_cast<std::size_t>(drawn.source)]
                            [static_cast<std::size_t>(sample.document)];
        for (const PlacedSample::Run& run : sample.answers) {
          sum = std::accumulate(nats.begin() + run.begin, nats.begin() + run.end, sum,
                                std::minus<double>());
        }
      }
    }
  }
  ObjectiveSums take_sums() override { return {}; }

 private:
  const BatchLoader& data_;
  const std::vector<DrawnSequence>& sequences_;
  std::int64_t sequence_T_;
  std::vector<std::vector<double>>& found_;
};

void add_over_ranks(std::vector<double>& numbers, Communicator& world) {
  CallerStream host;
  const auto size = static_cast<std::int64_t>(numbers.size());
  world.all_reduce({numbers.data(), DType::kF64, Shape{size}}, ReduceOp::kSum, Purpose::kControl,
                   host);
}

std::string tensor_name(const std::string& part, std::size_t source) {
  return fmt::format("{}.{}", part, source);
}

}  // namespace

ReferenceLogProbabilities::ReferenceLogProbabilities(const BatchLoader& data) {
  for (int source = 0; source < data.num_sources(); ++source) {
    const DocumentPacking* const packing = data.sequences(source).packing();
    check(packing != nullptr, "source {} of pairs holds no documents", source);
    by_source_.emplace_back(static_cast<std::size_t>(packing->documents().num_documents()),
                            kUnknown);
  }
}

bool ReferenceLogProbabilities::knows(int source, std::int64_t document) const {
  return !std::isnan(
      by_source_.at(static_cast<std::size_t>(source)).at(static_cast<std::size_t>(document)));
}

double ReferenceLogProbabilities::of(int source, std::int64_t document) const {
  check(knows(source, document), "the reference of answer {} of source {} is not known", document,
        source);
  return by_source_[static_cast<std::size_t>(source)][static_cast<std::size_t>(document)];
}

std::vector<DrawnSequence> ReferenceLogProbabilities::unknown(const BatchLoader& data,
                                                              std::int64_t samples) const {
  std::vector<std::vector<bool>> seen;
  std::int64_t left = 0;  // sequences that no sample has drawn yet
  for (int source = 0; source < data.num_sources(); ++source) {
    const std::int64_t count = data.sequences(source).count();
    seen.emplace_back(static_cast<std::size_t>(count), false);
    left += count;
  }
  std::vector<DrawnSequence> found;
  for (std::int64_t sample = 0; sample < samples && left > 0; ++sample) {
    const DrawnSequence drawn = data.draw(sample);
    auto is_seen =
        seen[static_cast<std::size_t>(drawn.source)][static_cast<std::size_t>(drawn.index)];
    if (is_seen) continue;
    is_seen = true;
    left -= 1;
    const std::vector<PlacedSample> placed = data.sequences(drawn.source).samples(drawn.index);
    if (std::any_of(placed.begin(), placed.end(), [&](const PlacedSample& sample_of) {
          return !sample_of.answers.empty() && !knows(drawn.source, sample_of.document);
        })) {
      found.push_back(drawn);
    }
  }
  return found;
}

void ReferenceLogProbabilities::compute(Engine& engine,
                                        const BatchLoader& data,
                                        const std::vector<DrawnSequence>& sequences) {
  const BatchPlan& batch = engine.plan().batch;
  std::vector<std::vector<double>> sums;
  for (const std::vector<double>& source : by_source_) {
    sums.emplace_back(source.size(), 0.0);
  }
  engine.set_objective(std::make_unique<Recorder>(data, sequences, batch.sequence, sums));
  const auto total = static_cast<std::int64_t>(sequences.size());
  const auto T = static_cast<std::size_t>(batch.sequence);
  const LoadBatch load = [&](std::int64_t first, std::span<std::int32_t> inputs,
                             std::span<std::int32_t> targets) {
    for (std::size_t row = 0; row * T < inputs.size(); ++row) {
      const std::int64_t at = std::min(first + static_cast<std::int64_t>(row), total - 1);
      const DrawnSequence& drawn = sequences[static_cast<std::size_t>(at)];
      data.sequences(drawn.source)
          .read(drawn.index, inputs.subspan(row * T, T), targets.subspan(row * T, T));
    }
  };
  const std::int64_t at_once = batch.micro_batch * batch.data_parallel;
  auto told = std::chrono::steady_clock::now();
  for (std::int64_t begin = 0; begin < total; begin += at_once) {
    const std::int64_t first = begin + batch.data_rank * batch.micro_batch;
    engine.evaluate(load, std::min(first, total - 1),
                    std::clamp<std::int64_t>(total - first, 0, batch.micro_batch));
    if (const auto now = std::chrono::steady_clock::now();
        engine.world().rank() == 0 && now - told > kTellEvery) {
      told = now;
      spdlog::info("reference: {} of {}", grouped(std::min(begin + at_once, total)),
                   counted(total, "sequence"));
    }
  }
  for (std::size_t source = 0; source < sums.size(); ++source) {
    if (!engine.tells_losses()) std::fill(sums[source].begin(), sums[source].end(), 0.0);
    add_over_ranks(sums[source], engine.world());
  }
  for (const DrawnSequence& drawn : sequences) {
    const auto source = static_cast<std::size_t>(drawn.source);
    for (const PlacedSample& sample : data.sequences(drawn.source).samples(drawn.index)) {
      const auto document = static_cast<std::size_t>(sample.document);
      by_source_[source][document] = sums[source][document];
    }
  }
}

void ReferenceFile::read(const Parts& parts, Communicator& world) const {
  std::string trouble;
  if (std::error_code ignored; world.rank() == 0 && std::filesystem::exists(path_, ignored)) {
    try {
      const SafetensorsFile file(path_);
      const auto identity = file.metadata().find("identity");
      if (identity == file.metadata().end() || identity->second != identity_) {
        trouble = "it is of other weights or data";
      }
      for (const auto& [part, numbers] : parts) {
        for (std::size_t source = 0; trouble.empty() && source < numbers->by_source_.size();
             ++source) {
          std::vector<double>& values = numbers->by_source_[source];
          const auto entry = file.tensors().find(tensor_name(part, source));
          const auto bytes = entry == file.tensors().end() ? std::span<const std::byte>()
                                                           : file.data(entry->second);
          if (bytes.size() != values.size() * sizeof(double)) {
            trouble =
                fmt::format("it has no {} of {} numbers", tensor_name(part, source), values.size());
          } else {
            std::memcpy(values.data(), bytes.data(), bytes.size());
          }
        }
      }
    } catch (const CheckpointError& error) {
      trouble = error.what();
    }
    if (!trouble.empty()) {
      spdlog::info("{} is not used, but made anew: {}", path_.string(), trouble);
    }
  }
  for (const auto& [part, numbers] : parts) {
    for (std::vector<double>& values : numbers->by_source_) {
      if (!trouble.empty()) std::fill(values.begin(), values.end(), kUnknown);
      if (world.rank() != 0) std::fill(values.begin(), values.end(), 0.0);
      add_over_ranks(values, world);
    }
  }
}

void ReferenceFile::write(const Parts& parts) const {
  std::vector<SafetensorsDecl> tensors;
  for (const auto& [part, numbers] : parts) {
    for (std::size_t source = 0; source < numbers->all().size(); ++source) {
      const auto size = static_cast<std::int64_t>(numbers->all()[source].size());
      tensors.push_back({.name = tensor_name(part, source), .dtype = "F64", .shape = {size}});
    }
  }
  const DurableFiles files;
  files.make_folder(path_.parent_path());
  const std::filesystem::path temporary = path_.string() + ".tmp";
  SafetensorsWriter writer(files, temporary, tensors, {{"identity", identity_}});
  for (const auto& [part, numbers] : parts) {
    for (const std::vector<double>& values : numbers->all()) {
      writer.write(std::as_bytes(std::span(values)));
    }
  }
  writer.finish();
  files.rename(temporary, path_);
}

}  // namespace dstrain
