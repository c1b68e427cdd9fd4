#include "engine/comm/device_rendezvous.h"

#include <map>
#include <string>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/comm/nccl_communicator.h"
#include "engine/comm/solo_communicator.h"
#include "engine/comm/staged_communicator.h"

namespace dstrain {
namespace {

std::string device_key(int world_rank) {
  return fmt::format("device of rank/{}", world_rank);
}

class DeviceRendezvous final : public Rendezvous {
 public:
  DeviceRendezvous(Rendezvous& host,
                   Store& store,
                   Device& device,
                   const DeviceRendezvousOptions& options)
      : host_(host),
        store_(store),
        device_(device),
        options_(options),
        staging_(std::make_shared<StagingMemory>(device)) {
    if (world_size() > 1) {
      store_.set(device_key(world_rank()), device_.identity());
    }
  }

  [[nodiscard]] int world_rank() const override { return host_.world_rank(); }
  [[nodiscard]] int world_size() const override { return host_.world_size(); }

  std::unique_ptr<Communicator> make_group(const std::string& name,
                                           std::span<const int> members) override {
    const int rank = rank_in_group(*this, name, members);
    if (members.size() == 1) {
      return make_solo_communicator(name, &device_);
    }
    if (const std::string shared = find_shared_device(name, members); !shared.empty()) {
      return make_staged_communicator(host_.make_group(name, members), staging_);
    }
    tell_what_nccl_lacks();
    return make_nccl_communicator(
        {.name = name, .members = {members.begin(), members.end()}, .rank = rank}, store_, device_,
        {.timeout = options_.timeout,
         .connect_timeout = options_.connect_timeout,
         .activity = options_.activity});
  }

 private:
  /// Returns a sentence that names the members that share a device; empty if none do. Only the
  /// first member looks, so that a group of n asks the store 2 n times and not n² times.
  std::string find_shared_device(const std::string& name, std::span<const int> members) {
    const std::string key = fmt::format("shared device of/{}", name);
    if (world_rank() != members.front()) {
      return store_.get(key, options_.connect_timeout);
    }
    std::string shared;
    std::map<std::string, int> holders;
    for (const int member : members) {
      const std::string device = store_.get(device_key(member), options_.connect_timeout);
      const auto [holder, is_new] = holders.try_emplace(device, member);
      if (!is_new && shared.empty()) {
        shared = fmt::format("ranks {} and {} compute on one device, {}", holder->second, member,
                             device);
        spdlog::info("group \"{}\" talks through the host's memory and not NCCL: {}", name, shared);
      }
    }
    store_.set(key, shared);
    return shared;
  }

  /// Reports it once, on rank 0, unless nothing was requested.
  void tell_what_nccl_lacks() {
    if (world_rank() == 0 && options_.security != WireSecurity::kTrusted && !told_) {
      spdlog::info(
          "network.security={} does not cover what NCCL carries between GPUs, which is neither "
          "authenticated nor encrypted; the id by which its ranks meet is both",
          name_of(options_.security));
    }
    told_ = true;
  }

  Rendezvous& host_;
  Store& store_;
  Device& device_;
  const DeviceRendezvousOptions options_;
  const std::shared_ptr<StagingMemory> staging_;  // shared with the groups that use it
  bool told_ = false;
};

}  // namespace

std::unique_ptr<Rendezvous> make_device_rendezvous(Rendezvous& host,
                                                   Store& store,
                                                   Device& device,
                                                   const DeviceRendezvousOptions& options) {
  return std::make_unique<DeviceRendezvous>(host, store, device, options);
}

}  // namespace dstrain
