#include "launcher/ssh/ssh_target.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace dstrain::launcher {
namespace {

[[noreturn]] void refuse(std::string_view written, const char* why) {
  throw HostfileError(
      fmt::format("host \"{}\": {}; expected [USER@]HOST[:PORT], with an IPv6 address before a "
                  "port in brackets",
                  written, why));
}

std::uint16_t parse_port(std::string_view digits, std::string_view written) {
  std::uint16_t port = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, port);
  if (error != std::errc() || stop != end || port == 0) {
    refuse(written, "the port is not a number from 1 to 65535");
  }
  return port;
}

}  // namespace

SshTarget parse_ssh_target(std::string_view written) {
  SshTarget target;
  std::string_view rest = written;
  // The last one: user names may hold an "@", hosts may not.
  if (const size_t at = rest.rfind('@'); at != std::string_view::npos) {
    target.user = rest.substr(0, at);
    if (target.user.empty()) refuse(written, "there is no user before the \"@\"");
    rest.remove_prefix(at + 1);
  }
  if (rest.starts_with('[')) {
    const size_t close = rest.find(']');
    if (close == std::string_view::npos) refuse(written, "the \"[\" is never closed");
    target.host = rest.substr(1, close - 1);
    rest.remove_prefix(close + 1);
    if (rest.starts_with(':')) {
      target.port = parse_port(rest.substr(1), written);
    } else if (!rest.empty()) {
      refuse(written, "only \":PORT\" may follow the \"]\"");
    }
  } else if (std::count(rest.begin(), rest.end(), ':') == 1) {
    const size_t colon = rest.find(':');
    target.host = rest.substr(0, colon);
    target.port = parse_port(rest.substr(colon + 1), written);
  } else {
    target.host = rest;
  }
  if (target.host.empty()) refuse(written, "there is no host");
  // It would be an option to every program that is given it.
  if (target.host.front() == '-') refuse(written, "a host cannot start with \"-\"");
  if (target.host.find_first_of(" \t\r\n\"'`$\\;&<>|(){}[]") != std::string::npos) {
    refuse(written, "there are characters in it that no host has");
  }
  return target;
}

}  // namespace dstrain::launcher
