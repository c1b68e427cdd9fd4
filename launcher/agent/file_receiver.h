// The host's side of sending it a file: a shell command that reads the file from its stdin and puts
// it under its name whole or not at all. How the bytes get there is the sender's matter.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/hosts/host_failure.h"
#include "launcher/process/byte_stream.h"

namespace dstrain::launcher {

/// A relative path starts in the user's home; folders are made.
std::vector<std::string> receive_file_command(const std::string& path, std::size_t bytes, int mode);

/// Owns the stream to that command until it ends. `done` comes from the event loop.
void await_receipt(std::unique_ptr<ByteStream> stream,
                   const std::string& host,
                   const std::string& path,
                   std::function<void(std::optional<HostFailure>)> done);

}  // namespace dstrain::launcher
