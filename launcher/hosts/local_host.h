// Answers the launcher's questions about the machine it runs on: its names, programs, ports and
// cores.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/file_descriptor.h"
#include "launcher/process/errors.h"

namespace dstrain::launcher {

/// Whether `host` names this machine: localhost, a loopback address, its host name, or an address
/// of one of its interfaces. Nothing is asked of the network.
bool is_this_machine(std::string_view host);
std::string own_hostname();
/// The path of a program that PATH finds; empty if it finds none.
std::string program_in_path(const std::string& name);
/// The addresses by which other hosts might reach this one: numeric, IPv4 first, of interfaces that
/// are up; neither loopback nor link-local.
std::vector<std::string> own_addresses();

/// A socket that listens, as rank 0 will, and its port.
struct Listener {
  FileDescriptor socket;
  std::uint16_t port = 0;
};
/// Listens on any free port if `port` is 0. Throws PreflightError, naming the process that holds
/// the port where /proc shows it.
Listener listen_on(const std::string& address, std::uint16_t port);

/// Share number `index` of `count`: as equal as they can be, without overlap; with more shares than
/// cores, one core each, in turn.
std::vector<int> share_of_cores(const std::vector<int>& cores, int index, int count);

}  // namespace dstrain::launcher
