// Nodes that are each started by hand, without SSH, all of them on this machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/failure/tiny_run.h"
#include "tests/harness/reserved_port.h"

namespace dstrain::testing {

inline constexpr const char* kToken = "0123456789abcdef-of-a-test";

/// One command line for all nodes, and a port of their own.
class Nodes {
 public:
  explicit Nodes(int count) : count_(count) {}

  [[nodiscard]] const TinyRun& run() const { return run_; }

  std::unique_ptr<Program> start(int rank,
                                 const std::vector<std::string>& more = {},
                                 const std::string& token = kToken) const {
    return start_of(count_, rank, more, token);
  }
  std::unique_ptr<Program> start_of(int count,
                                    int rank,
                                    const std::vector<std::string>& more,
                                    const std::string& token = kToken) const {
    return start_as({"--node_rank", std::to_string(rank), "--num_nodes", std::to_string(count),
                     "--master_addr", "127.0.0.1", "--master_port", std::to_string(port())},
                    more, token);
  }
  /// Calls node 0 at another port.
  std::unique_ptr<Program> start_through(std::uint16_t port, int rank) const {
    return start_as({"--node_rank", std::to_string(rank), "--num_nodes", std::to_string(count_),
                     "--master_addr", "127.0.0.1", "--master_port", std::to_string(port)},
                    {}, kToken);
  }
  [[nodiscard]] std::uint16_t port() const { return port_.number(); }
  /// Started as with torchrun: the first node to come leads.
  std::unique_ptr<Program> arrive(const std::vector<std::string>& more = {}) const {
    return start_as({"--nnodes", std::to_string(count_), "--rdzv_endpoint",
                     "127.0.0.1:" + std::to_string(port()), "--rdzv_backend", "c10d"},
                    more, kToken);
  }

 private:
  std::unique_ptr<Program> start_as(std::vector<std::string> flags,
                                    const std::vector<std::string>& more,
                                    const std::string& token) const {
    std::vector<std::string> argv = {dstrain_binary(), "launch", "--nproc_per_node=1",
                                     run_.path("config.json")};
    argv.insert(argv.end(), flags.begin(), flags.end());
    argv.insert(argv.end(), more.begin(), more.end());
    return std::make_unique<Program>(argv, Program::Environment{{"DSTRAIN_TOKEN", token}});
  }

  TinyRun run_;
  int count_;
  ReservedPort port_;
};

inline bool says(const Program& node, const std::string& words) {
  const bool said = becomes_true([&] { return node.err().find(words) != std::string::npos; },
                                 std::chrono::seconds{20});
  if (!said) UNSCOPED_INFO("the node said: " << node.err());
  return said;
}

}  // namespace dstrain::testing
