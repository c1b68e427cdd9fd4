// WireAttacker: another user of a host who tries to get between the ranks that run there.
//
// It connects to everything that begins to listen in the network, TCP ports and abstract Unix
// sockets, as soon as it shows up in /proc/net, and listens itself where they stop. Two connections
// become a relay, which passes on the data of one end to the other and flips the signs in long
// messages. The others stay silent, send garbage, or replay what they have received elsewhere,
// whole or truncated. All stay open.
#pragma once

#include <atomic>
#include <cstdint>

#include <sys/types.h>

#include "tests/cluster/namespaces.h"

namespace dstrain::testing {

struct AttackCounts {
  std::atomic<std::int64_t> connections;
  std::atomic<std::int64_t> relays;
  std::atomic<std::int64_t> relayed_bytes;
  std::atomic<std::int64_t> turned_signs;
};

class WireAttacker {
 public:
  enum class Manner {
    kRelay,    ///< nothing but relays, which others' failing would spoil
    kAnything  ///< all of the above
  };
  /// Runs as nobody, in the holder's network, until it is destroyed. `seed` decides what each
  /// connection does.
  WireAttacker(const NamespaceHolder& network, Manner manner, unsigned seed);
  WireAttacker(const WireAttacker&) = delete;
  WireAttacker& operator=(const WireAttacker&) = delete;
  ~WireAttacker();

  [[nodiscard]] const AttackCounts& counts() const { return *counts_; }

 private:
  AttackCounts* counts_;  ///< shared with the attacking process
  pid_t pid_ = -1;
};

}  // namespace dstrain::testing
