// Checks that a growing batch divides among the ranks at every step.
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"

namespace dstrain {
namespace {

constexpr const char* kRampup = "rampup_batch_size";
/// Forwards of micro-batches through the chunks of the model, in all steps of one pipeline that
/// differ: the order of each is planned before the run, in a second for so many.
constexpr std::int64_t kMostPasses = 1'000'000;

/// The numbers nearest to `increment` that divide `growth` and are multiples of `unit`, as `growth`
/// is: "16" or "16 or 24".
std::string nearest_increments(std::int64_t increment, std::int64_t growth, std::int64_t unit) {
  std::string text;
  for (std::int64_t low = std::min(increment, growth) / unit * unit; low > 0; low -= unit) {
    if (growth % low == 0) {
      text = fmt::format("{} or ", low);
      break;
    }
  }
  std::int64_t high = (increment / unit + 1) * unit;
  while (high < growth && growth % high != 0) {
    high += unit;
  }
  return high > growth ? text.substr(0, text.find(' ')) : text + std::to_string(high);
}

}  // namespace

void resolve_rampup(const LoadedConfig& loaded, std::int64_t data_parallel, Origins& origins) {
  const Config& config = loaded.config;
  if (!config.rampup_batch_size) {
    return;
  }
  const BatchRamp& ramp = *config.rampup_batch_size;
  const std::int64_t whole = config.batch.train_batch_size.value();
  const auto refuse = [&](const std::string& why) {
    throw_config_error(
        origins[kRampup], kRampup,
        fmt::format("[{}, {}, {}]: {}", ramp.start, ramp.increment, ramp.samples, why));
  };
  if (ramp.start > whole) {
    refuse(fmt::format("begins above train_batch_size {}: expected at most that", whole));
  }
  const bool in_rounds = config.pipeline.schedule == ScheduleKind::kInterleaved;
  const std::int64_t rounds = in_rounds ? config.pipeline.stages : 1;
  const std::int64_t unit = config.batch.micro_batch_size.value() * data_parallel * rounds;
  if (ramp.start % unit != 0 || ramp.increment % unit != 0) {
    refuse(fmt::format(
        "begins with {} and grows by {}, and every step's batch must be a multiple of "
        "train_micro_batch_size_per_gpu {} × {} data-parallel rank{}{} = {}: the nearest are {} to "
        "begin with, and {} to grow by",
        ramp.start, ramp.increment, *config.batch.micro_batch_size, data_parallel,
        data_parallel == 1 ? "" : "s",
        in_rounds ? fmt::format(" × pipeline.stages {} (\"interleaved\")", rounds) : "", unit,
        nearest_multiples(ramp.start, unit), nearest_multiples(ramp.increment, unit)));
  }
  const std::int64_t growth = whole - ramp.start;
  if (growth % ramp.increment != 0) {
    refuse(fmt::format(
        "from {} in steps of {} it never reaches train_batch_size {}: the nearest to grow by {}",
        ramp.start, ramp.increment, whole, nearest_increments(ramp.increment, growth, unit)));
  }
  const std::int64_t micro_batches = config.batch.gradient_accumulation_steps.value();
  const std::int64_t chunks = std::int64_t{config.pipeline.stages} * config.pipeline.virtual_stages;
  const std::int64_t most = 2 * kMostPasses / (micro_batches * chunks);  // half of them, on average
  if (ramp.increments(whole) > most) {
    refuse(fmt::format(
        "grows {} times, to {} micro-batches a step, and at most {} times can be planned: "
        "expected more to grow by",
        ramp.increments(whole), micro_batches, most));
  }
}

}  // namespace dstrain
