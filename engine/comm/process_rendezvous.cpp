// The rendezvous of ranks that are processes: makes a mesh for each group, and takes leave of all
// of them together.
#include <utility>

#include <spdlog/spdlog.h>

#include "engine/comm/across_hosts.h"
#include "engine/comm/deadline.h"
#include "engine/comm/host_communicator.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/solo_communicator.h"

namespace dstrain {
namespace {

constexpr auto kGoodbyeDeadline = std::chrono::seconds(5);

class ProcessRendezvous final : public Rendezvous {
 public:
  ProcessRendezvous(int world_rank, int world_size, Store& store, ProcessOptions options)
      : world_rank_(world_rank),
        world_size_(world_size),
        store_(store),
        options_(std::move(options)) {
    check(world_size_ >= 1 && world_rank_ >= 0 && world_rank_ < world_size_, "rank {} of {}",
          world_rank_, world_size_);
  }

  // A connection that closes while its peer still sends would be reset, and what the peer has not
  // read yet would be lost. So members leave together, or after a deadline.
  ~ProcessRendezvous() override {
    const auto close_all = [this] {
      for (const auto& mesh : meshes_) {
        mesh->abort();
      }
    };
    try {
      const Deadline guard(std::chrono::steady_clock::now() + kGoodbyeDeadline, close_all);
      for (const auto& mesh : meshes_) {
        mesh->send_goodbye();
      }
      for (const auto& mesh : meshes_) {
        mesh->await_goodbyes();
      }
    } catch (const std::exception& failure) {  // a peer that failed is gone already
      spdlog::debug("leaving the job reason=\"{}\"", failure.what());
      close_all();
    }
  }

  [[nodiscard]] int world_rank() const override { return world_rank_; }
  [[nodiscard]] int world_size() const override { return world_size_; }

  std::unique_ptr<Communicator> make_group(const std::string& name,
                                           std::span<const int> members) override {
    const int rank = rank_in_group(*this, name, members);
    if (members.size() == 1) {
      return make_solo_communicator(name);
    }
    PeerGroup group{.name = name, .members = {members.begin(), members.end()}, .rank = rank};
    auto mesh = std::make_shared<PeerMesh>(std::move(group), options_.timeout);
    mesh->connect(options_.wire, store_, options_.connect_timeout);
    if (!mesh->no_shared_memory().empty() && !told_) {
      told_ = true;
      spdlog::warn(
          "ranks of this host talk through sockets, several times slower: no shared memory "
          "group=\"{}\" reason=\"{}\"",
          name, mesh->no_shared_memory());
    }
    meshes_.push_back(mesh);
    return make_host_communicator(std::move(mesh), options_.timeout, options_.activity);
  }

 private:
  const int world_rank_;
  const int world_size_;
  Store& store_;
  const ProcessOptions options_;
  std::vector<std::shared_ptr<PeerMesh>> meshes_;
  bool told_ = false;  ///< that there is no shared memory
};

}  // namespace

std::int64_t host_message_bytes(int members, WireSecurity security) {
  return members > 1
             ? PeerMesh::buffer_bytes(members, security) + AcrossHosts::buffer_bytes(members)
             : 0;
}

std::unique_ptr<Rendezvous> make_process_rendezvous(int world_rank,
                                                    int world_size,
                                                    Store& store,
                                                    ProcessOptions options) {
  return std::make_unique<ProcessRendezvous>(world_rank, world_size, store, std::move(options));
}

}  // namespace dstrain
