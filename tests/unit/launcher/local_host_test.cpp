#include "launcher/hosts/local_host.h"

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"

namespace dstrain::launcher {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("names and loopback addresses of this machine are known as such", "[launcher]") {
  for (const char* name : {"localhost", "LOCALHOST", "127.0.0.1", "127.9.8.7", "::1"}) {
    INFO(name);
    CHECK(is_this_machine(name));
  }
  CHECK(is_this_machine(own_hostname()));
  // 192.0.2.0/24 is reserved for documentation.
  for (const char* name : {"192.0.2.1", "2001:db8::1", "w0.example", "localhost:22", "me@localhost",
                           "1270.0.0.1", ""}) {
    INFO(name);
    CHECK_FALSE(is_this_machine(name));
  }
}

TEST_CASE("a port that is taken is refused, naming who holds it", "[launcher]") {
  const FileDescriptor holder(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(bind(holder.get(), generic, size) == 0);
  REQUIRE(listen(holder.get(), 1) == 0);
  REQUIRE(getsockname(holder.get(), generic, &size) == 0);
  const std::uint16_t port = ntohs(address.sin_port);

  CHECK_THROWS_WITH(
      listen_on("127.0.0.1", port),
      Contains(std::to_string(port)) && Contains("by pid " + std::to_string(getpid()) + " ("));
}

TEST_CASE("a free port can be listened on", "[launcher]") {
  const std::uint16_t port = listen_on("127.0.0.1", 0).port;
  CHECK(port > 0);
  CHECK_NOTHROW(listen_on("127.0.0.1", port));
  CHECK_THROWS_AS(listen_on("192.0.2.1", 0), PreflightError);
}

TEST_CASE("cores are shared out whole, evenly, and without overlap", "[launcher]") {
  const std::vector<int> cores = {8, 9, 10, 11, 12, 13, 14};
  for (int count = 1; count <= 7; ++count) {
    std::vector<int> all;
    size_t smallest = cores.size();
    size_t largest = 0;
    for (int index = 0; index < count; ++index) {
      const std::vector<int> share = share_of_cores(cores, index, count);
      all.insert(all.end(), share.begin(), share.end());
      smallest = std::min(smallest, share.size());
      largest = std::max(largest, share.size());
    }
    INFO(count);
    CHECK(all == cores);
    CHECK(largest - smallest <= 1);
  }
}

TEST_CASE("with more ranks than cores each rank gets one, in turn", "[launcher]") {
  const std::vector<int> cores = {4, 5};
  CHECK(share_of_cores(cores, 0, 3) == std::vector<int>{4});
  CHECK(share_of_cores(cores, 1, 3) == std::vector<int>{5});
  CHECK(share_of_cores(cores, 2, 3) == std::vector<int>{4});
  CHECK(share_of_cores({}, 0, 3).empty());
}

}  // namespace
}  // namespace dstrain::launcher
