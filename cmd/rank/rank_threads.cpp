#include "cmd/rank/rank_threads.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include <fmt/format.h>

#include "engine/config/config_error.h"

namespace dstrain {
namespace {

constexpr const char* kOmpNumThreads = "OMP_NUM_THREADS";

}  // namespace

std::optional<std::string> ThreadWish::notice() const {
  if (!environment || config == environment) return std::nullopt;
  if (config) {
    return fmt::format("threads={} a rank, by training.threads; {}={} is not used", *config,
                       kOmpNumThreads, *environment);
  }
  return fmt::format("threads={} a rank, by {}; training.threads would come first", *environment,
                     kOmpNumThreads);
}

std::optional<int> omp_num_threads(const EnvironmentLookup& lookup) {
  const std::optional<std::string> text = lookup(kOmpNumThreads);
  if (!text || text->empty()) return std::nullopt;
  const std::string_view first = std::string_view(*text).substr(0, text->find(','));
  int number = 0;
  const auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), number);
  if (error != std::errc() || end != first.data() + first.size() || number < 1) {
    throw ConfigError(fmt::format(
        "{}=\"{}\" in the environment: expected a whole number of threads, at least 1; unset it to "
        "use all cores",
        kOmpNumThreads, *text));
  }
  return number;
}

ThreadWish thread_wish(const TrainingConfig& training, const EnvironmentLookup& lookup) {
  return {.config =
              training.threads ? std::optional(static_cast<int>(*training.threads)) : std::nullopt,
          .environment = omp_num_threads(lookup)};
}

// Truncation spreads the remainder over the ranks.
int share_of_threads(int cores, int index, int ranks) {
  const auto first = [&](std::int64_t rank) { return static_cast<int>(rank * cores / ranks); };
  return std::max(1, first(index + 1) - first(index));
}

RankThreads rank_threads(const RankEnv& env,
                         const ThreadWish& wish,
                         const UsableCores& cores,
                         int machine_cores) {
  if (env.threads > 0) {  // the launcher has said what there was to say
    return {.number = wish.config.value_or(env.threads)};
  }
  // A quota covers all ranks of a container, whether each has cores of its own or not.
  const auto own_cores = static_cast<int>(cores.ids.size());
  const bool is_bound = own_cores < machine_cores;
  const int ranks = env.local_size;
  int share = is_bound ? std::max(1, own_cores) : share_of_threads(own_cores, 0, ranks);
  if (cores.quota_is_tighter()) {
    share = std::min(share, share_of_threads(cores.count(), 0, ranks));
  }
  RankThreads threads{.number = wish.threads().value_or(share)};
  if (const auto notice = wish.notice()) threads.notices.push_back(*notice);
  if (threads.number > share) {
    threads.warning = fmt::format(
        "threads={} a rank: more than its share of the cores, which is {}; they will take turns",
        threads.number, share);
  }
  return threads;
}

int estimated_threads(const Config& config, int ranks_per_host) {
  return thread_wish(config.training, process_environment)
      .threads()
      .value_or(share_of_threads(num_usable_cores(), 0, ranks_per_host));
}

}  // namespace dstrain
