#include "launcher/ssh/ssh_target.h"

#include <optional>

#include <fmt/format.h>

#include "engine/base/network_address.h"

namespace dstrain::launcher {
namespace {

[[noreturn]] void refuse(std::string_view written, const char* why) {
  throw HostfileError(
      fmt::format("host \"{}\": {}; expected [USER@]HOST[:PORT], with an IPv6 address before a "
                  "port in brackets",
                  written, why));
}

}  // namespace

SshTarget parse_ssh_target(std::string_view written) {
  SshTarget target;
  std::string_view rest = written;
  // The last "@" counts: user names may hold one, hosts may not.
  if (const size_t at = rest.rfind('@'); at != std::string_view::npos) {
    target.user = rest.substr(0, at);
    if (target.user.empty()) refuse(written, "there is no user before the \"@\"");
    rest.remove_prefix(at + 1);
  }
  const std::optional<HostAndPort> place = parse_host_and_port(rest);
  if (!place) refuse(written, "there is no host, or its brackets or its port are wrong");
  target.host = place->host;
  target.port = place->port.value_or(0);
  // Every program that is given such a name would take it for an option.
  if (target.host.front() == '-') refuse(written, "a host cannot start with \"-\"");
  if (target.host.find_first_of(" \t\r\n\"'`$\\;&<>|(){}[]") != std::string::npos) {
    refuse(written, "it contains characters that no host name has");
  }
  return target;
}

}  // namespace dstrain::launcher
