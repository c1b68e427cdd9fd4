// How the members of a group tell each other where to connect: each of them listens for each other
// one, and one all-to-all of the store hands every address to whom it is for.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gloo/transport/tcp/address.h>
#include <netinet/in.h>

#include "engine/comm/communicator.h"
#include "engine/comm/gloo_mesh.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

// What of Gloo's address is not padding: of N ranks the store carries N² of them. The larger of the
// two socket addresses, so that all are of one length whichever interface a rank listens on.
struct PairAddress {
  sockaddr_in6 socket{};  ///< or a sockaddr_in, which is shorter
  std::uint32_t sequence_low = 0;
  std::uint32_t sequence_high = 0;
};
static_assert(sizeof(sockaddr_in) <= sizeof(sockaddr_in6));
static_assert(sizeof(PairAddress) == sizeof(sockaddr_in6) + 8 &&
              std::is_trivially_copyable_v<PairAddress>);

using GlooAddress = gloo::transport::tcp::Address;

PairAddress shortened(const std::vector<char>& bytes) {
  const GlooAddress address(bytes);
  const sockaddr_storage socket = address.getSockaddr();
  check(socket.ss_family == AF_INET || socket.ss_family == AF_INET6,
        "Gloo listens on an address of family {}", socket.ss_family);
  const auto sequence = static_cast<std::uint64_t>(address.getSeq());
  PairAddress shorter{.sequence_low = static_cast<std::uint32_t>(sequence),
                      .sequence_high = static_cast<std::uint32_t>(sequence >> 32)};
  std::memcpy(&shorter.socket, &socket, sizeof shorter.socket);
  return shorter;
}

std::vector<char> as_gloo_writes_it(const PairAddress& address) {
  sockaddr_storage socket{};
  std::memcpy(&socket, &address.socket, sizeof address.socket);
  const std::uint64_t sequence = std::uint64_t{address.sequence_high} << 32 | address.sequence_low;
  return GlooAddress(socket, static_cast<ssize_t>(sequence)).bytes();
}

}  // namespace

GlooMesh::Addresses GlooMesh::meet(Store& store, std::chrono::milliseconds timeout) {
  const std::string members = fmt::format("members {}", fmt::join(group_.members, ","));
  std::vector<PairAddress> mine(static_cast<std::size_t>(size()));
  for (const int peer : peers_) {
    mine[static_cast<std::size_t>(peer)] = shortened(context_->createPair(peer)->address().bytes());
  }
  const std::string key = fmt::format("group/{}", group_.name);
  const Column theirs = store.all_to_all(
      {.key = key,
       .rank = rank(),
       .size = size(),
       .agreed = members,
       .row = {reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(PairAddress)}},
      timeout);
  if (!theirs.missing.empty()) {
    std::vector<int> missing;
    for (const int member : theirs.missing) {
      missing.push_back(group_.members[static_cast<std::size_t>(member)]);
    }
    throw Timeout(fmt::format(
        "forming group \"{}\": rank(s) {} of the job did not join within "
        "{:.3g} s",
        group_.name, fmt::join(missing, ", "), std::chrono::duration<double>(timeout).count()));
  }
  check(theirs.entries.size() == mine.size() * sizeof(PairAddress),
        "group \"{}\": {} bytes of addresses for {} members", group_.name, theirs.entries.size(),
        size());
  Addresses addresses(mine.size());
  for (const int peer : peers_) {
    const auto place = static_cast<std::size_t>(peer);
    PairAddress address;
    std::memcpy(&address, theirs.entries.data() + place * sizeof address, sizeof address);
    addresses[place] = as_gloo_writes_it(address);
  }
  return addresses;
}

}  // namespace dstrain
