// The table of a preflight: what every host said of itself.
#include <algorithm>

#include <fmt/format.h>

#include "cmd/launch/host_machine.h"
#include "cmd/launch/preflight.h"
#include "engine/base/amount_text.h"

namespace dstrain {

std::string to_text(const PreflightReport& report) {
  std::size_t name_width = 4;
  std::size_t address_width = 7;
  for (const HostReport& host : report.hosts) {
    name_width = std::max(name_width, host.name.size());
    address_width = std::max(address_width, host.address.size());
  }
  std::string text = fmt::format("{:<{}}  {:<{}}  {:>5}  {:>5}  {:>11}  {:>8}  {:>9}  {}\n", "host",
                                 name_width, "address", address_width, "ranks", "cores",
                                 "memory free", "clock", "to rank 0", "");
  for (const HostReport& host : report.hosts) {
    const auto objections = std::count_if(
        report.failures.begin(), report.failures.end(),
        [&](const launcher::HostFailure& failure) { return failure.host == host.name; });
    const std::string verdict = objections > 0 ? counted(objections, "problem") : "ok";
    if (host.cores == 0) {
      text += fmt::format("{:<{}}  {:<{}}  {:>5}  {:>5}  {:>11}  {:>8}  {:>9}  {}\n", host.name,
                          name_width, "-", address_width, host.slots, "-", "-", "-", "-", verdict);
      continue;
    }
    text += fmt::format("{:<{}}  {:<{}}  {:>5}  {:>5}  {:>11}  {:>+7.1f}s  {:>9}  {}\n", host.name,
                        name_width, host.address, address_width, host.slots, host.cores,
                        size_text(host.available_memory_bytes), host.clock_ahead_s,
                        host.to_master_ms < 0 ? "-" : fmt::format("{:.1f} ms", host.to_master_ms),
                        verdict);
    if (!host.gpus.empty()) {
      text += fmt::format("{:<{}}  {}\n", "", name_width, describe_gpus(host.gpus, host.driver));
    }
  }
  if (report.master.port != 0) {
    text +=
        fmt::format("rank 0 listens on {} port {}\n", report.master.address, report.master.port);
  }
  return text;
}

}  // namespace dstrain
