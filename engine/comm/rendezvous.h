// Rendezvous: makes a Communicator from a store and a list of members. Only members of a group
// meet.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/activity.h"
#include "engine/comm/communicator.h"
#include "engine/comm/store.h"
#include "engine/comm/wire_options.h"

namespace dstrain {

/// Makes communicators for groups of the world. There is one per rank, and nothing that it made
/// outlives it.
class Rendezvous {
 public:
  Rendezvous() = default;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  virtual ~Rendezvous() = default;

  [[nodiscard]] virtual int world_rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  /// Collective over `members` (world ranks, ascending, this rank among them). `name` is the same
  /// on all of them and unique in the job. A group of one waits for nobody and returns at once.
  [[nodiscard]] virtual std::unique_ptr<Communicator> make_group(const std::string& name,
                                                                 std::span<const int> members) = 0;
};

/// This rank's place in `members`, after checking them: distinct, ascending, in the world.
int rank_in_group(const Rendezvous& rendezvous,
                  const std::string& name,
                  std::span<const int> members);

struct ProcessOptions {
  WireOptions wire;                            ///< how the ranks reach and recognise each other
  std::chrono::milliseconds timeout{600'000};  ///< deadline of a collective
  std::chrono::milliseconds connect_timeout{60'000};  ///< deadline of forming a group
  ActivityRecorder* activity = nullptr;               ///< notified of every collective; may be null
};

/// Makes the rendezvous of ranks that are processes, over sockets (peer_meeting.h) and within a
/// host through shared memory (peer_mesh.h). `store` must outlive it.
std::unique_ptr<Rendezvous> make_process_rendezvous(int world_rank,
                                                    int world_size,
                                                    Store& store,
                                                    ProcessOptions options);

/// The memory that a group of `members` ranks takes on each of them for messages on their way;
/// nothing for a group of one.
std::int64_t host_message_bytes(int members, WireSecurity security);

}  // namespace dstrain
