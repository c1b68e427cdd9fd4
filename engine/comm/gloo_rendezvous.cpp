// The rendezvous of ranks that are processes: makes a mesh for each group, and takes leave of all
// of them together.
#include <utility>

#include <fmt/format.h>
#include <gloo/transport/tcp/device.h>
#include <signal.h>
#include <spdlog/spdlog.h>

#include "engine/comm/block_signals.h"
#include "engine/comm/deadline.h"
#include "engine/comm/gloo_communicator.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/solo_communicator.h"

namespace dstrain {
namespace {

constexpr auto kGoodbyeDeadline = std::chrono::seconds(5);

class GlooRendezvous final : public Rendezvous {
 public:
  GlooRendezvous(int world_rank, int world_size, Store& store, GlooOptions options)
      : world_rank_(world_rank),
        world_size_(world_size),
        store_(store),
        options_(std::move(options)) {
    check(world_size_ >= 1 && world_rank_ >= 0 && world_rank_ < world_size_, "rank {} of {}",
          world_rank_, world_size_);
  }

  // A connection that closes right behind its last message would lose the peer that message: Gloo
  // reports the end first. So members leave together, or after a deadline.
  ~GlooRendezvous() override {
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
    GlooMesh::Group group{.name = name, .members = {members.begin(), members.end()}, .rank = rank};
    auto mesh = std::make_shared<GlooMesh>(device(), std::move(group), options_.timeout);
    mesh->connect(store_, options_.connect_timeout);
    meshes_.push_back(mesh);
    return make_gloo_communicator(std::move(mesh), options_.timeout, options_.activity);
  }

 private:
  /// Made with the first group that needs it: a job of one rank opens no socket.
  std::shared_ptr<gloo::transport::Device>& device() {
    if (device_ == nullptr) {
      ignore_broken_pipes();
      const BlockSignals block;  // it starts a thread
      const gloo::transport::tcp::attr attributes(options_.interface_address.c_str());
      device_ = gloo::transport::tcp::CreateDevice(attributes);
    }
    return device_;
  }

  static void ignore_broken_pipes() {
    struct sigaction action {};
    sigaction(SIGPIPE, nullptr, &action);
    if (action.sa_handler == SIG_DFL) {
      action.sa_handler = SIG_IGN;
      sigaction(SIGPIPE, &action, nullptr);
    }
  }

  const int world_rank_;
  const int world_size_;
  Store& store_;
  const GlooOptions options_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::vector<std::shared_ptr<GlooMesh>> meshes_;
};

}  // namespace

std::int64_t gloo_buffer_bytes(int members) {
  return members > 1 ? GlooMesh::buffer_bytes(members) : 0;
}

std::unique_ptr<Rendezvous> make_gloo_rendezvous(int world_rank,
                                                 int world_size,
                                                 Store& store,
                                                 GlooOptions options) {
  return std::make_unique<GlooRendezvous>(world_rank, world_size, store, std::move(options));
}

}  // namespace dstrain
