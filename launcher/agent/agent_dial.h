// The agent's end of agent_listener.h: from "where the launcher may be" to a connection with it.
#pragma once

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <asio.hpp>

#include "launcher/agent/agent_listener.h"

namespace dstrain::launcher {

struct Place {
  std::string address;  ///< numeric
  std::uint16_t port = 0;
};
/// "10.0.0.1:4711,[fd00::1]:4711". Throws std::invalid_argument.
std::vector<Place> parse_places(std::string_view text);
std::string to_text(const std::vector<Place>& places);

/// Thrown where the answer comes from something other than this job's launcher, so that trying
/// again is in vain.
class DialRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A connection with the launcher, and its seal, which is nullptr without `make_seal`.
struct DialledLauncher {
  asio::ip::tcp::socket socket;
  std::unique_ptr<ChannelSeal> seal;
};

/// Tries the launcher's addresses all at once, since a host cannot know which of them it reaches;
/// the first that proves that it knows the secret is taken. Throws std::runtime_error, a sentence
/// with what was wrong with each, after `deadline`, or DialRefused.
DialledLauncher dial_launcher(asio::io_context& loop,
                              const std::vector<Place>& places,
                              const std::string& own_name,
                              const KeyedHash& keyed_hash,
                              const MakeChannelSeal& make_seal,
                              std::chrono::milliseconds deadline);

}  // namespace dstrain::launcher
