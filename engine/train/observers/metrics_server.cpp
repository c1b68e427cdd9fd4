#include "engine/train/observers/metrics_server.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <httplib.h>
#include <spdlog/spdlog.h>

#include "engine/config/config_error.h"
#include "engine/train/records/curves.h"

namespace dstrain {

struct MetricsServer::Server {
  httplib::Server http;
  std::mutex mutex;
  MetricsSnapshot now;  // guarded by mutex
  std::atomic<bool> has_ended = false;
  std::thread thread;

  void answer(const httplib::Request& request, httplib::Response& response) {
    const MetricsText text = accepted_text(request.get_header_value("Accept"));
    MetricsSnapshot copy;
    {
      const std::lock_guard lock(mutex);
      copy = now;
    }
    response.set_content(to_text(copy, text), content_type(text));
  }
};

MetricsServer::MetricsServer(const HostAndPort& address, std::string run, std::int64_t resumed_step)
    : server_(std::make_unique<Server>()) {
  server_->now.run = std::move(run);
  server_->now.step = resumed_step;
  // Whoever connects and says nothing, as a probe of the port does, keeps a thread for a second at
  // most, and the run as long at its end. Threads that wait take nothing from training.
  constexpr std::size_t kThreads = 4;
  server_->http.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server_->http.set_keep_alive_timeout(1);
  server_->http.set_read_timeout(1);
  server_->http.set_write_timeout(1);
  // The library's default is SO_REUSEPORT, with which two runs would share a port unnoticed.
  server_->http.set_socket_options([](socket_t socket) {
    const int yes = 1;
    static_cast<void>(::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)));
  });
  server_->http.Get("/metrics", [server = server_.get()](const httplib::Request& request,
                                                         httplib::Response& response) {
    server->answer(request, response);
  });
  errno = 0;
  const std::string place = host_and_port(address.host, address.port.value());
  if (!server_->http.bind_to_port(address.host, *address.port)) {
    const int error = errno;
    throw ConfigError(
        fmt::format("--metrics-port: rank 0 cannot listen at {}: {}; give another port or address",
                    place, error == 0 ? "not an address of its host" : std::strerror(error)));
  }
  server_->thread = std::thread([server = server_.get()] {
    server->http.listen_after_bind();
    server->has_ended = true;
  });
  while (!server_->http.is_running() && !server_->has_ended) {  // until then stop() has no effect
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  spdlog::info("metrics for Prometheus at http://{}/metrics", place);
}

MetricsServer::~MetricsServer() {
  server_->http.stop();
  server_->thread.join();
}

void MetricsServer::on_phase(RunPhase phase) noexcept {
  const std::lock_guard lock(server_->mutex);
  server_->now.phase = phase;
}

void MetricsServer::on_step(const StepMetrics& metrics, bool /*is_last*/) {
  const std::lock_guard lock(server_->mutex);
  MetricsSnapshot& now = server_->now;
  now.step = metrics.step;
  now.tokens = metrics.tokens;
  now.step_end = std::chrono::system_clock::now();
  now.values.resize(curves().size());
  for (std::size_t i = 0; i < now.values.size(); ++i) {
    if (const auto value = curves()[i].value(metrics)) now.values[i] = value;
  }
}

}  // namespace dstrain
