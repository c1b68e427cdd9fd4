#include "cmd/why/priced_run.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string_view>

#include "engine/config/config_error.h"
#include "engine/config/config_json.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/run_outline.h"
#include "engine/train/step_price.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

/// Tokens of a micro-batch at which a processor's products run half as fast as they can.
constexpr double kHalfEfficientOnCpu = 8.0;
constexpr double kNoLimit = 1e30;  // of a rate

/// The ranks of a host, where all have as many.
int ranks_per_host(const std::vector<std::string>& hosts) {
  std::map<std::string, int> counts;
  for (const std::string& host : hosts)
    ++counts[host];
  return counts.empty() ? 1 : counts.begin()->second;
}

}  // namespace

PricedRun::PricedRun(const RunOverview& run, const StepAccount& account)
    : config_((run.status.folder / "config.resolved.json").string()) {
  if (run.starts.empty() || account.steps() < 1) return;
  ranks_ = run.starts.back().ranks;
  ranks_per_host_ = ranks_per_host(run.starts.back().hosts);
  if (ranks_ < 1) return;
  try {
    fit(account.compute,
        std::accumulate(account.communication.begin(), account.communication.end(), 0.0) /
            std::max(1e-9, account.compute));
  } catch (const ConfigError&) {  // of another version, or gone
    now_ = 0.0;
  } catch (const InternalError&) {
    now_ = 0.0;
  }
}

std::optional<double> PricedRun::gain(const std::vector<std::string>& sets) const {
  if (now_ <= 0.0 || sets.empty()) return std::nullopt;
  // The resolved config has all three numbers of a batch, of which the user may have written one: a
  // change of layout may contradict the others.
  std::vector<std::string> tried = sets;
  for (const char* const left_open :
       {"", "gradient_accumulation_steps=null", "train_micro_batch_size_per_gpu=null"}) {
    const std::string_view setting = left_open;
    const std::string_view key = setting.substr(0, setting.find('=') + 1);  // none of none
    const bool is_said = std::any_of(sets.begin(), sets.end(), [&](const std::string& set) {
      return !key.empty() && set.starts_with(key);
    });
    if (is_said) continue;
    if (!setting.empty()) tried.emplace_back(left_open);
    try {
      return 1.0 - price(tried, rates_) / now_;
    } catch (const ConfigError&) {
      continue;
    } catch (const InternalError&) {
      continue;
    }
  }
  return std::nullopt;
}

double PricedRun::price(const std::vector<std::string>& sets, const Rates& rates) const {
  LoadedConfig loaded = load_config(config_, {.overrides = sets});
  const bool is_cuda = loaded.config.training.device == DeviceChoice::kCuda;
  resolve_config(loaded, ranks_,
                 {.cuda = is_cuda,
                  .multiplies_bf16 = is_cuda,
                  .multiplies_f16 = is_cuda,
                  .ranks_per_host = ranks_per_host_});
  const Cluster cluster{
      .accelerator = {.flops = rates.flops, .link_bytes = rates.bytes},
      .ranks_per_host = ranks_per_host_,
      .network_bytes = rates.bytes,
      .half_efficient_tokens = is_cuda ? Cluster().half_efficient_tokens : kHalfEfficientOnCpu};
  double most = 0.0;
  for (const int rank : ranks_that_stand_for_all(loaded.config, ranks_)) {
    most = std::max(most,
                    price_step(loaded.config, make_run_plan(loaded.config, ranks_, rank), cluster));
  }
  return most / static_cast<double>(loaded.config.batch.train_batch_size.value());
}

/// `communicating` is in units of `computing`, and so is what it is compared with.
void PricedRun::fit(double computing, double communicating) {
  if (!(computing > 0.0)) return;
  rates_ = {.flops = 1e12, .bytes = kNoLimit};
  const double alone = price({}, rates_);
  // Where ranks wait for bytes for hardly any time, no rate can be told from it.
  if (communicating > 1e-3) {
    double low = 1e3;
    double high = 1e18;
    for (int halving = 0; halving < 60; ++halving) {
      const double middle = std::sqrt(low * high);
      const bool is_slower =
          price({}, {.flops = rates_.flops, .bytes = middle}) / alone - 1.0 > communicating;
      (is_slower ? low : high) = middle;
    }
    rates_.bytes = high;
  }
  now_ = price({}, rates_);
}

}  // namespace dstrain
