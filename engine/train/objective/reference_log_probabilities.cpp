#include "engine/train/objective/reference_log_probabilities.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/base/checksum.h"
#include "engine/checkpoint/safetensors.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

std::string tensor_name(const std::string& part, std::size_t source) {
  return fmt::format("{}.{}", part, source);
}

/// The text of the checksum of all parts' numbers.
std::string checksum_of(const ReferenceFile::Parts& parts) {
  RunningChecksum sum;
  for (const auto& [part, numbers] : parts) {
    for (const std::vector<double>& values : numbers->all()) {
      sum.add(std::as_bytes(std::span(values)));
    }
  }
  return checksum_text(sum.value());
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

bool ReferenceLogProbabilities::compute(Engine& engine,
                                        const BatchLoader& data,
                                        const std::vector<DrawnSequence>& sequences,
                                        const GoesOn& goes_on) {
  std::vector<std::vector<double>> sums;
  for (const std::vector<double>& source : by_source_) {
    sums.emplace_back(source.size(), 0.0);
  }
  const auto drawn = [&](std::int64_t row) { return sequences[static_cast<std::size_t>(row)]; };
  const bool is_whole = pass_over_rows(
      engine, std::ssize(sequences),
      [&](std::int64_t row, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
        data.sequences(drawn(row).source).read(drawn(row).index, inputs, targets);
      },
      [&](std::int64_t row, const RowNumbers& found) {
        const std::span<const float> nats = found.nats_T;
        std::vector<double>& of_source = sums[static_cast<std::size_t>(drawn(row).source)];
        for (const PlacedSample& sample :
             data.sequences(drawn(row).source).samples(drawn(row).index)) {
          double& sum = of_source[static_cast<std::size_t>(sample.document)];
          for (const PlacedSample::Run& run : sample.answers) {
            sum = std::accumulate(nats.begin() + run.begin, nats.begin() + run.end, sum,
                                  std::minus<double>());
          }
        }
      },
      goes_on);
  if (!is_whole) return false;
  for (std::vector<double>& source : sums) {
    add_over_ranks(source, engine.world());
  }
  for (const DrawnSequence& sequence : sequences) {
    const auto source = static_cast<std::size_t>(sequence.source);
    for (const PlacedSample& sample : data.sequences(sequence.source).samples(sequence.index)) {
      const auto document = static_cast<std::size_t>(sample.document);
      by_source_[source][document] = sums[source][document];
    }
  }
  return true;
}

std::optional<std::vector<double>> mismatched_log_probabilities(
    Engine& engine,
    const BatchLoader& data,
    const std::vector<AnswerPlace>& answers,
    const GoesOn& goes_on) {
  std::vector<double> sums(answers.size(), 0.0);
  const auto place = [&](std::int64_t row) { return answers[static_cast<std::size_t>(row)]; };
  const bool is_whole = pass_over_rows(
      engine, std::ssize(answers),
      [&](std::int64_t row, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
        data.sequences(place(row).source).read_mismatched(place(row).document, inputs, targets);
      },
      [&](std::int64_t row, const RowNumbers& found) {
        const std::span<const float> nats = found.nats_T;
        sums[static_cast<std::size_t>(row)] =
            std::accumulate(nats.begin(), nats.end(), 0.0, std::minus<double>());
      },
      goes_on);
  if (!is_whole) return std::nullopt;
  add_over_ranks(sums, engine.world());
  return sums;
}

void ReferenceFile::read(const Parts& parts, Communicator& world) const {
  std::string trouble;
  if (std::error_code ignored; world.rank() == 0 && std::filesystem::exists(path_, ignored)) {
    try {
      const SafetensorsFile file(path_);
      const auto said = [&](const char* key) {
        const auto found = file.metadata().find(key);
        return found == file.metadata().end() ? std::string() : found->second;
      };
      if (said("identity") != identity_) trouble = "it is of other weights or data";
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
      if (trouble.empty() && said("checksum") != checksum_of(parts)) trouble = "it is damaged";
    } catch (const CheckpointError& error) {
      trouble = error.what();
    }
    if (!trouble.empty()) {
      spdlog::warn("{} is not used, but made anew: {}", path_.string(), trouble);
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
  SafetensorsWriter writer(files, temporary, tensors,
                           {{"identity", identity_}, {"checksum", checksum_of(parts)}});
  for (const auto& [part, numbers] : parts) {
    for (const std::vector<double>& values : numbers->all()) {
      writer.write(std::as_bytes(std::span(values)));
    }
  }
  writer.finish();
  files.rename(temporary, path_);
}

}  // namespace dstrain
