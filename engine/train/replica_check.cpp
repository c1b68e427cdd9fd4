#include "engine/train/replica_check.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/base/checksum.h"
#include "engine/checkpoint/agreement.h"
#include "engine/train/host_name.h"
#include "kernels/core/caller_stream.h"

namespace dstrain {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// What every rank sends to all others in every check.
struct Report {
  std::array<BitSums, kNumCopyHolders> of_holders{};
  std::uint64_t fp8 = 0;
  std::int64_t broken_units = 0;
  double sum_seconds = 0.0;
  double exchange_seconds = 0.0;
  double step_seconds = 0.0;
};
constexpr std::int64_t kReportWords = sizeof(Report) / sizeof(std::int32_t);

std::vector<Report> gather(const Report& mine, Communicator& world) {
  std::vector<std::int32_t> own(kReportWords);
  std::memcpy(own.data(), &mine, sizeof mine);
  std::vector<std::int32_t> all(static_cast<std::size_t>(world.size() * kReportWords));
  CallerStream host;
  world.all_gather({own.data(), DType::kI32, Shape{kReportWords}},
                   {all.data(), DType::kI32, Shape{world.size() * kReportWords}},
                   Purpose::kIntegrity, host);
  host.synchronize();
  std::vector<Report> reports(static_cast<std::size_t>(world.size()));
  std::memcpy(static_cast<void*>(reports.data()), all.data(), reports.size() * sizeof(Report));
  return reports;
}

}  // namespace

ReplicaCheck::ReplicaCheck(Engine& engine) : engine_(engine), fetched_(RunPlan::kBitSums) {
  const RunPlan& plan = engine.plan();
  const int tensor_ranks = plan.mesh.degree(Axis::kTensor);
  for (const StateSegment& segment : state_copies(plan.shards, plan.memory, tensor_ranks)) {
    const bool compared = segment.has_copies != StateSegment{}.has_copies;
    if (compared || segment.has_master) sums_.push_back({.segment = segment});
    if (segment.is_master) sums_.push_back({.segment = segment, .of_cast = true});
  }
  has_work_ = plan.mesh.world_size() > 1 || plan.memory.has(RegionKind::kMaster);
}

/// Takes as many sums at once as the scratch memory holds.
void ReplicaCheck::take_sums() {
  const LayerContext& context = engine_.context();
  const Tensor scratch = engine_.arena().buffer(engine_.plan().bit_sums);
  for (std::size_t begin = 0; begin < sums_.size(); begin += fetched_.size()) {
    const std::size_t count = std::min(fetched_.size(), sums_.size() - begin);
    for (std::size_t i = 0; i < count; ++i) {
      Sum& sum = sums_[begin + i];
      const StateSegment& segment = sum.segment;
      const Tensor values = engine_.arena()
                                .unit(segment.region, segment.unit)
                                .flat(segment.at, segment.at + segment.range.size());
      const auto at = static_cast<std::int64_t>(4 * i);
      const Site site = context.site(segment.region, segment.unit);
      const DType as = sum.of_cast ? engine_.plan().memory.options().compute_dtype : values.dtype();
      if (engine_.arena().space(segment.region, segment.unit) == Space::kDevice) {
        site.ops.bit_sums(values, as, scratch.flat(at, at + 4), site.stream);
        continue;
      }
      sum.value = {};
      site.visit_parts(values, [&](ConstTensor part, std::int64_t first, Stream& stream) {
        BitSums of_part;
        site.ops.bit_sums(part, as, {&of_part, DType::kI32, Shape{4}}, stream);
        stream.synchronize();
        sum.value.add(of_part, first);
      });
    }
    context.device.copy_to_host(scratch.flat(0, static_cast<std::int64_t>(4 * count)),
                                fetched_.data(), context.compute);
    context.compute.synchronize();
    for (std::size_t i = 0; i < count; ++i) {
      Sum& sum = sums_[begin + i];
      const Space space = engine_.arena().space(sum.segment.region, sum.segment.unit);
      if (space == Space::kDevice) sum.value = fetched_[i];
    }
  }
}

std::vector<ReplicaCheck::Entry> ReplicaCheck::entries() const {
  std::vector<Entry> found;
  for (const Sum& sum : sums_) {
    if (sum.of_cast) continue;
    for (int holders = 0; holders < kNumCopyHolders; ++holders) {
      if (!sum.segment.has_copies.at(static_cast<std::size_t>(holders))) continue;
      const auto same = std::find_if(found.begin(), found.end(), [&](const Entry& entry) {
        return entry.holders == static_cast<CopyHolders>(holders) &&
               entry.unit == sum.segment.unit && entry.region == sum.segment.region;
      });
      Entry& entry = same != found.end()
                         ? *same
                         : found.emplace_back(Entry{static_cast<CopyHolders>(holders),
                                                    sum.segment.unit, sum.segment.region});
      entry.sums.add(sum.value, sum.segment.range.begin);
    }
  }
  add_untrained(found);
  return found;
}

/// Adds the tensors that are not trained, which all data-parallel and tensor-parallel ranks hold.
void ReplicaCheck::add_untrained(std::vector<Entry>& entries) const {
  const LayerContext& context = engine_.context();
  for (const UntrainedDecl& untrained : engine_.plan().blueprint.untrained()) {
    std::vector<std::uint32_t> bits(static_cast<std::size_t>(untrained.shape.numel()));
    context.device.copy_to_host(engine_.arena().buffer(untrained.buffer), bits.data(),
                                context.compute);
    context.compute.synchronize();
    BitSums sums;
    for (std::size_t i = 0; i < bits.size(); ++i) {
      sums.add({.plain = bits[i]}, static_cast<std::int64_t>(i));
    }
    for (const CopyHolders holders : {CopyHolders::kData, CopyHolders::kTensor}) {
      entries.push_back({.holders = holders,
                         .unit = untrained.unit,
                         .region = RegionKind::kConstants,
                         .sums = sums});
    }
  }
}

std::vector<int> ReplicaCheck::broken_units() const {
  std::map<int, BitSums> of_parameters;
  std::map<int, BitSums> of_masters;
  for (const Sum& sum : sums_) {
    if (sum.of_cast) {
      of_masters[sum.segment.unit].add(sum.value, sum.segment.range.begin);
    } else if (sum.segment.has_master) {
      of_parameters[sum.segment.unit].add(sum.value, sum.segment.range.begin);
    }
  }
  std::vector<int> broken;
  for (const auto& [unit, sums] : of_masters) {
    if (of_parameters[unit] != sums && really_differs(unit)) broken.push_back(unit);
  }
  return broken;
}

/// Compares element by element, on the host. Subnormal numbers count as zero: the instruction by
/// which some processors round to bf16 flushes them, and whether an element went through it depends
/// on where its vector began.
bool ReplicaCheck::really_differs(int unit) const {
  const LayerContext& context = engine_.context();
  const Tensor master = engine_.arena().master(unit);
  const Tensor parameters = engine_.arena().owned_parameters(unit);
  if (parameters.dtype() == DType::kF32) return true;  // whose master is kept to the bit
  std::vector<float> wide(static_cast<std::size_t>(master.numel()));
  std::vector<std::uint16_t> narrow(wide.size());
  const Site site = context.site(RegionKind::kMaster, unit);
  site.device.copy_to_host(master, wide.data(), site.stream);
  site.stream.synchronize();
  context.device.copy_to_host(parameters, narrow.data(), context.compute);
  context.compute.synchronize();
  const Range owned = engine_.plan().memory.owned(unit);
  const std::int64_t valid =
      std::clamp(engine_.plan().shards.numel(unit) - owned.begin, std::int64_t{0}, master.numel());
  constexpr std::uint16_t kWithoutSign = 0x7fff;
  constexpr std::uint16_t kLeastNormal = 0x80;  // of bf16
  const bool is_bf16 = parameters.dtype() == DType::kBF16;
  for (std::size_t i = 0; i < static_cast<std::size_t>(valid); ++i) {
    const std::uint16_t rounded = is_bf16 ? to_bf16(wide[i]).bits : to_f16(wide[i]).bits;
    const bool is_tiny =
        is_bf16 && (rounded & kWithoutSign) <= kLeastNormal && (narrow[i] & kWithoutSign) == 0;
    const bool both_nan = std::isnan(wide[i]) && (is_bf16 ? std::isnan(to_float(BF16{narrow[i]}))
                                                          : std::isnan(to_float(F16{narrow[i]})));
    if (rounded != narrow[i] && !is_tiny && !both_nan) return true;
  }
  return false;
}

std::uint64_t ReplicaCheck::fp8_sum() const {
  std::string text;
  for (const auto& [name, peaks] : engine_.fp8_state()) {
    text += name;
    for (const AmaxPeak& peak : peaks)
      text += fmt::format(" {}:{}", peak.age, peak.exponent);
    text += '\n';
  }
  return text.empty() ? 0 : checksum(text);
}

int ReplicaCheck::group_of(CopyHolders holders, int rank) const {
  const Mesh& mesh = engine_.plan().mesh;
  const int tensor_ranks = mesh.degree(Axis::kTensor);
  const int stage = mesh.index(Axis::kPipeline, rank);
  switch (holders) {
    case CopyHolders::kData:
      return mesh.first(kGradientAxes, rank);
    case CopyHolders::kExpertData:
      return mesh.first(Axis::kExpertData, rank);
    case CopyHolders::kSameSlice:
      return mesh.first(Axis::kDataAcross, rank);
    case CopyHolders::kTensor:
      return mesh.first(Axis::kTensor, rank);
    case CopyHolders::kSharedHeads: {
      const auto heads = static_cast<int>(
          std::min<std::int64_t>(engine_.plan().model.num_key_value_heads, tensor_ranks));
      const int copies = tensor_ranks / heads;
      return rank - mesh.index(Axis::kTensor, rank) % copies;
    }
    case CopyHolders::kTiedStages:
      if (stage != 0 && stage != mesh.degree(Axis::kPipeline) - 1) return -1;
      return mesh.first(Axis::kPipeline, rank);
  }
  return -1;
}

ReplicaCheck::Result ReplicaCheck::run(double step_seconds) {
  const auto begin = Clock::now();
  engine_.settle();
  take_sums();
  const std::vector<Entry> mine = entries();
  const std::vector<int> broken = broken_units();
  const std::uint64_t fp8 = fp8_sum();
  Report report{.fp8 = fp8,
                .broken_units = static_cast<std::int64_t>(broken.size()),
                .sum_seconds = seconds_since(begin),
                .exchange_seconds = exchange_seconds_,
                .step_seconds = step_seconds};
  // Numbers elements as if units lay one after the other, each beginning where no other reaches.
  constexpr std::int64_t kApart = std::int64_t{1} << 36;
  std::array<std::int64_t, kNumCopyHolders> begins{};
  for (const Entry& entry : mine) {
    const auto holders = static_cast<std::size_t>(entry.holders);
    report.of_holders.at(holders).add(entry.sums, begins.at(holders));
    begins.at(holders) += kApart;
  }
  const auto exchange = Clock::now();
  const std::vector<Report> reports = gather(report, engine_.world());
  exchange_seconds_ = seconds_since(exchange);

  Result result{.step_seconds = step_seconds};
  double least_exchange = report.exchange_seconds;
  bool differs = false;
  std::map<std::pair<int, int>, BitSums> of_groups;
  for (int rank = 0; rank < static_cast<int>(reports.size()); ++rank) {
    const Report& other = reports[static_cast<std::size_t>(rank)];
    result.seconds = std::max(result.seconds, other.sum_seconds);
    result.step_seconds = std::min(result.step_seconds, other.step_seconds);
    least_exchange = std::min(least_exchange, other.exchange_seconds);
    differs = differs || other.broken_units > 0 || other.fp8 != reports.front().fp8;
    for (int holders = 0; holders < kNumCopyHolders; ++holders) {
      const int group = group_of(static_cast<CopyHolders>(holders), rank);
      const BitSums& sums = other.of_holders.at(static_cast<std::size_t>(holders));
      differs = differs ||
                (group >= 0 && of_groups.try_emplace({holders, group}, sums).first->second != sums);
    }
  }
  result.seconds += least_exchange;
  if (differs) result.difference = ask_around(mine, broken, fp8);
  return result;
}

/// Rank 0 gets all reports, decides what they mean and sends the result to all.
ReplicaDifference ReplicaCheck::ask_around(const std::vector<Entry>& entries,
                                           const std::vector<int>& broken,
                                           std::uint64_t fp8) {
  Communicator& world = engine_.world();
  const ShardMap& shards = engine_.plan().shards;
  HeldCopies mine{.host = host_name(), .entries = {}, .broken_units = {}};
  for (const int unit : broken) {
    mine.broken_units.push_back(shards.unit(unit).name);
  }
  for (const Entry& entry : entries) {
    mine.entries.push_back({.group = fmt::format("{} of {}", static_cast<int>(entry.holders),
                                                 group_of(entry.holders, world.rank())),
                            .unit = shards.unit(entry.unit).name,
                            .what = name_of(entry.region),
                            .sums = entry.sums});
  }
  mine.entries.push_back(
      {.group = "world", .unit = "", .what = "scales of fp8", .sums = {.plain = fp8}});
  std::vector<HeldCopies> held;
  for (const std::string& text : gather_texts(Json(mine).dump(), world)) {
    held.push_back(Json::parse(text));
  }
  const std::string found = world.rank() == 0 ? Json(find_difference(held)).dump() : "";
  return Json::parse(broadcast_text(found, 0, world));
}

}  // namespace dstrain
