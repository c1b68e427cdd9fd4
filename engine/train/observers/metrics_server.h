// MetricsServer: lets Prometheus, or anything that speaks HTTP, ask how the run is going
// (launch --metrics-port). It answers GET /metrics from a thread of its own.
#pragma once

#include <memory>
#include <string>

#include "engine/base/network_address.h"
#include "engine/train/observers/run_observer.h"
#include "engine/train/records/open_metrics.h"

namespace dstrain {

class MetricsServer final : public RunObserver {
 public:
  /// Begins to serve; `address` has a port. `run` is the run's name. Throws ConfigError where the
  /// port cannot be had.
  MetricsServer(const HostAndPort& address, std::string run, std::int64_t resumed_step);
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;
  ~MetricsServer() override;

  void on_phase(RunPhase phase) noexcept override;
  void on_step(const StepMetrics& metrics, bool is_last) override;

 private:
  struct Server;
  std::unique_ptr<Server> server_;
};

}  // namespace dstrain
