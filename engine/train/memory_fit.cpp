#include "engine/train/memory_fit.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "engine/train/fit_choices.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/run_outline.h"

namespace dstrain {
namespace {

/// Bytes of a host's memory and of its disk, and what the host that has least to spare lacks.
struct HostNeeds {
  std::int64_t memory = 0;
  std::int64_t disk = 0;
  std::int64_t memory_lacking = 0;
  std::int64_t disk_lacking = 0;
};

/// The needs of the ranks, and of the hosts, that need the most of each.
struct Needs {
  std::int64_t bytes = 0;  ///< overhead included
  double seconds = 0.0;    ///< of a step
  HostNeeds host;
};

/// Plans candidates. The schedule is most of a large plan's cost and the same for many of them.
class Planner {
 public:
  /// The question outlives it.
  explicit Planner(const FitQuestion& question) : question_(question), hosts_(question.hosts) {
    const int together = std::max(1, question.cluster.ranks_per_host);
    for (int rank = 0; question.hosts.empty() && rank < question.world_size; rank += together) {
      hosts_.push_back({.ranks = std::min(together, question.world_size - rank)});
    }
  }

  Needs plan(const Config& config) { return *plan(config, std::nullopt); }
  /// The needs of what fits; nothing where it does not. Most candidates do not, and the first rank
  /// that shows it is enough.
  std::optional<Needs> plan_what_fits(const Config& config) {
    const std::optional<Needs> needs = plan(config, question_.limit.bytes);
    return needs && fits(*needs) ? needs : std::nullopt;
  }

  [[nodiscard]] bool fits(const Needs& needs) const {
    return needs.bytes <= question_.limit.bytes && needs.host.memory_lacking == 0 &&
           needs.host.disk_lacking == 0;
  }
  /// Whether there is a host of which this is not known.
  [[nodiscard]] bool is_unknown(std::optional<std::int64_t> HostRoom::*bytes) const {
    return std::any_of(hosts_.begin(), hosts_.end(),
                       [&](const HostRoom& host) { return !(host.*bytes).has_value(); });
  }

 private:
  /// Nothing where a rank takes more than `most_bytes` of its device.
  std::optional<Needs> plan(const Config& config, std::optional<std::int64_t> most_bytes) {
    const Schedule& schedule = schedule_for(config);
    const Mesh mesh = mesh_of(config, question_.world_size);
    std::vector<HostNeeds> of_stages(static_cast<std::size_t>(mesh.degree(Axis::kPipeline)));
    Needs most;
    for (const int rank : ranks_that_stand_for_all(config, question_.world_size)) {
      const RunPlan plan = make_run_plan(config, question_.world_size, rank, schedule);
      most.bytes = std::max(most.bytes, plan.memory.bytes() + question_.overhead(plan));
      if (most_bytes && most.bytes > *most_bytes) return std::nullopt;
      most.seconds = std::max(most.seconds, price_step(config, plan, question_.cluster));
      if (!question_.host_bytes) continue;
      HostNeeds& stage = of_stages[static_cast<std::size_t>(mesh.index(Axis::kPipeline, rank))];
      stage.memory = std::max(stage.memory, question_.host_bytes(plan));
      stage.disk = std::max(stage.disk, plan.memory.bytes(Space::kDisk));
    }
    if (question_.host_bytes) most.host = add_up(mesh, of_stages);
    return most;
  }

  /// Adds up the needs of the ranks of each host, given those of a rank of each pipeline stage.
  [[nodiscard]] HostNeeds add_up(const Mesh& mesh, const std::vector<HostNeeds>& of_stages) const {
    HostNeeds most;
    int rank = 0;
    for (const HostRoom& host : hosts_) {
      std::int64_t memory = 0;
      std::int64_t disk = 0;
      for (const int end = rank + host.ranks; rank < end; ++rank) {
        const auto stage = static_cast<std::size_t>(mesh.index(Axis::kPipeline, rank));
        memory += of_stages[stage].memory;
        disk += of_stages[stage].disk;
      }
      most.memory = std::max(most.memory, memory);
      most.disk = std::max(most.disk, disk);
      most.memory_lacking =
          std::max(most.memory_lacking, memory - host.memory_bytes.value_or(memory));
      most.disk_lacking = std::max(most.disk_lacking, disk - host.disk_bytes.value_or(disk));
    }
    return most;
  }

  const Schedule& schedule_for(const Config& config) {
    const auto key =
        std::tuple(order_of(config), config.pipeline.stages, config.pipeline.virtual_stages,
                   *config.batch.gradient_accumulation_steps);
    auto found = schedules_.find(key);
    if (found == schedules_.end()) {
      found = schedules_.emplace(key, schedule_of(config)).first;
    }
    return found->second;
  }

  const FitQuestion& question_;
  std::vector<HostRoom> hosts_;
  std::map<std::tuple<PipelineOrder, int, int, std::int64_t>, Schedule> schedules_;
};

class Examiner {
 public:
  explicit Examiner(const FitQuestion& question)
      : question_(question), planner_(question), config_(question.config_with({}).config) {}

  MemoryFit examine() {
    MemoryFit fit;
    const Needs needs = planner_.plan(config_);
    fit.bytes = needs.bytes;
    fit.host_bytes = needs.host.memory;
    fit.disk_bytes = needs.host.disk;
    fit.host_bytes_lacking = needs.host.memory_lacking;
    fit.disk_bytes_lacking = needs.host.disk_lacking;
    now_ = needs;
    fit.fits = planner_.fits(needs);
    if (fit.fits) {
      find_largest_micro_batches(fit);
    } else {
      fit.remedies = find_remedies();
    }
    find_longest_sequence(fit);
    return fit;
  }

 private:
  /// Keeps the step's batch; the unset parts of the batch identity follow from it.
  [[nodiscard]] std::vector<std::string> keeping_the_batch() const {
    return {fmt::format("train_batch_size={}", *config_.batch.train_batch_size),
            fmt::format("train_micro_batch_size_per_gpu={}", *config_.batch.micro_batch_size),
            "gradient_accumulation_steps=auto"};
  }

  [[nodiscard]] std::optional<Config> with(const std::vector<std::string>& overrides) const {
    try {
      return question_.config_with(overrides).config;
    } catch (const ConfigError&) {
      return std::nullopt;  // an impossible layout
    }
  }

  std::vector<Remedy> find_remedies() {
    const Mesh mesh = mesh_of(config_, question_.world_size);
    choices_ = choices_of(config_, mesh, question_.cluster.ranks_per_host);
    // Try one change alone, then two, and so on; no more where fewer are enough.
    std::vector<Remedy> remedies;
    for (std::size_t changes = 1; changes <= choices_.size() && remedies.empty(); ++changes) {
      try_all(changes, 0, {}, remedies);
    }
    std::stable_sort(remedies.begin(), remedies.end(), [](const Remedy& a, const Remedy& b) {
      return a.relative_step_time < b.relative_step_time;
    });
    constexpr std::size_t kMostShown = 6;
    remedies.resize(std::min(remedies.size(), kMostShown));
    return remedies;
  }

  /// The first change of each choice that fits is enough: those after it cost more.
  void try_all(std::size_t changes,
               std::size_t first,
               const std::vector<const Change*>& made,
               std::vector<Remedy>& remedies) {
    if (made.size() == changes) {
      try_one(made, remedies);
      return;
    }
    for (std::size_t i = first; i < choices_.size(); ++i) {
      for (const Change& change : choices_[i]) {
        const std::size_t before = remedies.size();
        std::vector<const Change*> more = made;
        more.push_back(&change);
        try_all(changes, i + 1, more, remedies);
        if (more.size() == changes && remedies.size() > before) break;
      }
    }
  }

  void try_one(const std::vector<const Change*>& made, std::vector<Remedy>& remedies) {
    Remedy remedy;
    std::vector<std::string> effective = keeping_the_batch();
    for (const Change* const change : made) {
      remedy.what += (remedy.what.empty() ? "" : ", ") + change->what;
      remedy.overrides.insert(remedy.overrides.end(), change->overrides.begin(),
                              change->overrides.end());
    }
    effective.insert(effective.end(), remedy.overrides.begin(), remedy.overrides.end());
    const std::optional<Config> config = with(effective);
    if (!config) return;
    const std::optional<Needs> fitting = planner_.plan_what_fits(*config);
    if (!fitting) return;
    const Needs& needs = *fitting;
    remedy.bytes = needs.bytes;
    remedy.host_bytes = needs.host.memory;
    remedy.disk_bytes = needs.host.disk;
    remedy.host_unchecked =
        needs.host.memory > now_.host.memory && planner_.is_unknown(&HostRoom::memory_bytes);
    remedy.disk_unchecked =
        needs.host.disk > now_.host.disk && planner_.is_unknown(&HostRoom::disk_bytes);
    // They are enough by themselves where the config resolves to the same without the batch being
    // spelt out.
    if (const std::optional<Config> alone = with(remedy.overrides);
        !alone || !(*alone == *config)) {
      remedy.overrides = effective;
      drop_repeated_keys(remedy.overrides);
    }
    remedy.relative_step_time = needs.seconds / now_.seconds;
    remedies.push_back(std::move(remedy));
  }

  /// Of two overrides of the same key, the later counts.
  static void drop_repeated_keys(std::vector<std::string>& overrides) {
    const auto key = [](const std::string& text) { return text.substr(0, text.find('=')); };
    for (std::size_t i = 0; i < overrides.size();) {
      const bool again =
          std::any_of(overrides.begin() + static_cast<std::ptrdiff_t>(i) + 1, overrides.end(),
                      [&](const std::string& later) { return key(later) == key(overrides[i]); });
      if (again) {
        overrides.erase(overrides.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }

  /// The needs with micro-batches of that size, in the present number; none where that is
  /// impossible.
  std::optional<Needs> needs_with(std::int64_t micro_batch) {
    const auto config = with({"train_batch_size=auto",
                              fmt::format("train_micro_batch_size_per_gpu={}", micro_batch),
                              fmt::format("gradient_accumulation_steps={}",
                                          *config_.batch.gradient_accumulation_steps)});
    return config ? std::optional(planner_.plan(*config)) : std::nullopt;
  }

  /// Memory grows almost linearly with the micro-batch: the line through two known sizes finds the
  /// limit in a few plans. Where it does not, bisection does.
  std::int64_t largest_micro_batch(std::int64_t bytes_now) {
    constexpr std::int64_t kTooMany = std::int64_t{1} << 25;
    constexpr int kOnTheLine = 6;
    std::int64_t fits = *config_.batch.micro_batch_size;
    std::int64_t too_many = std::max(kTooMany, 2 * fits);
    std::int64_t bytes = bytes_now;  // with `fits`
    double slope = 0.0;
    for (int tries = 0; too_many - fits > 1; ++tries) {
      std::int64_t next = 2 * fits;
      if (slope > 0.0 && tries < kOnTheLine) {
        const double room = static_cast<double>(question_.limit.bytes - bytes) / slope;
        next = fits + static_cast<std::int64_t>(std::min(room, static_cast<double>(kTooMany)));
      } else if (tries >= kOnTheLine) {
        next = fits + (too_many - fits) / 2;
      }
      next = std::clamp(next, fits + 1, too_many - 1);
      const std::optional<Needs> needed = needs_with(next);
      if (needed) {
        slope = static_cast<double>(needed->bytes - bytes) / static_cast<double>(next - fits);
      }
      if (needed && planner_.fits(*needed)) {
        fits = next;
        bytes = needed->bytes;
      } else {
        too_many = next;
      }
    }
    return fits;
  }

  void find_largest_micro_batches(MemoryFit& fit) {
    const std::int64_t now = *config_.batch.micro_batch_size;
    fit.largest_micro_batch = largest_micro_batch(fit.bytes);
    const std::int64_t low = fit.largest_micro_batch;
    const std::int64_t of_rank = now * *config_.batch.gradient_accumulation_steps;
    fit.largest_of_this_batch = now;
    for (std::int64_t micro = std::min(low, of_rank); micro > now; --micro) {
      if (of_rank % micro != 0) continue;
      std::vector<std::string> overrides = keeping_the_batch();
      overrides[1] = fmt::format("train_micro_batch_size_per_gpu={}", micro);
      const auto config = with(overrides);
      if (config && planner_.plan_what_fits(*config)) {
        fit.largest_of_this_batch = micro;
        break;
      }
    }
  }

  /// The config with sequences of that length, with micro-batches as they are where it can say so:
  /// elasticity leaves them no choice. None where it is refused.
  [[nodiscard]] std::optional<Config> with_sequence(std::int64_t tokens) const {
    const std::string length = fmt::format("data.sequence_length={}", tokens);
    if (config_.elasticity.enabled) return with({length});
    std::vector<std::string> overrides = keeping_the_batch();
    overrides.push_back(length);
    return with(overrides);
  }

  /// The number of tokens that sequences must be multiples of. Every rule for that holds for the
  /// present length and for sums and differences of lengths that it holds for, so that the smallest
  /// divisor of that length by which it can change is the number.
  [[nodiscard]] std::int64_t sequence_step(std::int64_t now) const {
    const std::int64_t unit = config_.context_parallel.unit();
    for (std::int64_t step = unit; step < now; step += unit) {
      if (now % step == 0 && (with_sequence(now + step) || with_sequence(now - step))) return step;
    }
    return now;
  }

  void find_longest_sequence(MemoryFit& fit) {
    const std::int64_t now = config_.data.sequence_length;
    const std::int64_t step = sequence_step(now);
    std::int64_t low = fit.fits ? now : 0;
    std::optional<std::int64_t> too_long = fit.fits ? std::nullopt : std::optional(now);
    fit.longest_sequence = low;
    while (!too_long || *too_long - low > step) {
      const std::int64_t next = too_long ? low + (*too_long - low) / step / 2 * step : 2 * low;
      const std::optional<Config> config = with_sequence(next);
      const bool fits = config && planner_.plan_what_fits(*config);
      if (fits) fit.longest_sequence = next;
      // A shorter one that is refused is shorter than other keys allow, as a curriculum's.
      if (fits || (!config && next < now)) {
        low = next;
      } else {
        too_long = next;
        fit.config_allows_no_longer = !config;
      }
    }
  }

  const FitQuestion& question_;
  Planner planner_;
  Config config_;
  Needs now_;  // as the config is
  std::vector<Choice> choices_;
};

}  // namespace

MemoryFit examine_fit(const FitQuestion& question) {
  return Examiner(question).examine();
}

std::int64_t most_bytes(const Config& config, int world_size, const BytesOf& overhead) {
  const FitQuestion question{.config_with = {},
                             .world_size = world_size,
                             .limit = {},
                             .overhead = overhead,
                             .cluster = {}};
  return Planner(question).plan(config).bytes;
}

}  // namespace dstrain
