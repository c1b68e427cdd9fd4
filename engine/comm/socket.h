// Sockets with an owner and a deadline: the store's two ends and the links between ranks are built
// on them. Everything here is non-blocking and close-on-exec; a wait ends at a deadline.
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <sys/socket.h>

#include "engine/base/file_descriptor.h"

namespace dstrain {

using Clock = std::chrono::steady_clock;

/// Thrown where the port to listen on belongs to another program.
class PortInUse : public std::runtime_error {
 public:
  PortInUse(std::string host, std::uint16_t port);
  [[nodiscard]] const std::string& host() const { return host_; }
  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  std::string host_;
  std::uint16_t port_;
};

/// Listens on `host` ("" for every interface) and `port` (0: the system picks). A port whose last
/// connections are in TIME_WAIT is free. Throws PortInUse, or std::runtime_error.
FileDescriptor listen_on(const std::string& host, std::uint16_t port);
/// The next connection, ready to use; not valid, with errno set, if there is none now.
FileDescriptor accept_from(const FileDescriptor& listener);
std::uint16_t port_of(const FileDescriptor& socket);
/// "10.0.0.1:4711" and "10.0.0.1" of the other end.
std::pair<std::string, std::string> peer_of(const FileDescriptor& socket);

/// Tries once to connect. Throws std::runtime_error with the system's reason.
FileDescriptor connect_to(const std::string& host, std::uint16_t port, Clock::time_point deadline);

/// Begins to connect; this has succeeded or failed when the socket becomes writable (error_of). Not
/// valid, with errno set, if it failed at once.
FileDescriptor start_connecting(const sockaddr_storage& address);
int error_of(const FileDescriptor& socket);
sockaddr_storage address_of(const FileDescriptor& socket);

/// Makes a Unix socket that listens under an abstract name, which has no file and no permissions;
/// the other function tries to connect to one. Throws std::runtime_error; the connection is not
/// valid, with errno set, if it cannot be made now.
FileDescriptor listen_on_abstract(std::string_view name);
FileDescriptor connect_to_abstract(std::string_view name);
/// Whether the other end of a Unix socket was opened by a process of this one's effective user.
bool is_of_this_user(const FileDescriptor& socket);

/// Prepares a connection that carries much, and on which a busy peer may read nothing for long.
void prepare_for_bulk(const FileDescriptor& socket);

/// Lets this process open as many descriptors as it may: a large job needs one for each connection.
/// Returns how many.
std::size_t raise_descriptor_limit();

/// Sends all of `bytes`, or throws std::runtime_error: closed by the peer, or past the deadline.
void send_all(const FileDescriptor& socket, std::string_view bytes, Clock::time_point deadline);
std::string receive_exactly(const FileDescriptor& socket,
                            std::size_t bytes,
                            Clock::time_point deadline);

}  // namespace dstrain
