#include "launcher/agent/agent_dial.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/base/network_address.h"
#include "launcher/process/run_until.h"

namespace dstrain::launcher {
namespace {

using asio::ip::tcp;

/// A call to one of the addresses.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(asio::io_context& loop, const Place& place, std::string name, const KeyedHash& keyed_hash)
      : place_(place), name_(std::move(name)), keyed_hash_(keyed_hash), socket_(loop) {}

  /// `done` is called once, from the event loop.
  void begin(std::function<void()> done) {
    done_ = std::move(done);
    asio::error_code error;
    const auto address = asio::ip::make_address(place_.address, error);
    if (error) return end("not an address");
    socket_.async_connect({address, place_.port},
                          [self = shared_from_this()](const asio::error_code& refused) {
                            if (refused) return self->end(refused.message());
                            self->read(kAgentMagic.size() + kAgentNonceBytes, &Call::answer);
                          });
  }

  void give_up() {
    asio::error_code ignored;
    socket_.close(ignored);
  }

  [[nodiscard]] bool is_launcher() const { return is_launcher_; }
  [[nodiscard]] bool is_refused() const { return is_refused_; }
  [[nodiscard]] tcp::socket take_socket() { return std::move(socket_); }
  [[nodiscard]] std::unique_ptr<ChannelSeal> seal(const MakeChannelSeal& make_seal) const {
    const auto key_of = [this](std::string_view who) {
      return keyed_hash_(agent_key_challenge(who, listener_nonce_, nonce_, name_));
    };
    return make_seal(key_of("agent"), key_of("launcher"));
  }
  [[nodiscard]] std::string describe() const {
    return fmt::format("{}: {}", to_text({place_}), why_.empty() ? "no answer" : why_);
  }

 private:
  void read(std::size_t bytes, void (Call::*then)()) {
    in_.resize(bytes);
    asio::async_read(socket_, asio::buffer(in_),
                     [self = shared_from_this(), then](const asio::error_code& error, std::size_t) {
                       if (error) return self->end(self->why_hung_up(error));
                       (self.get()->*then)();
                     });
  }

  /// A caller that is admitted gets an answer: silence after the proof is a refusal.
  std::string why_hung_up(const asio::error_code& error) {
    is_refused_ = !out_.empty();
    return is_refused_ ? "it does not accept this node's secret: the tokens differ"
                       : "it hung up: " + error.message();
  }

  /// Ends with a refusal, which trying again would not change.
  void refuse(std::string why) {
    is_refused_ = true;
    end(std::move(why));
  }

  void answer() {
    if (!std::string_view(in_).starts_with(kAgentMagic.substr(0, kAgentMagic.size() - 1))) {
      return refuse("the program listening there is not a dstrain launcher");
    }
    if (in_[kAgentMagic.size() - 1] != kAgentMagic.back()) {
      return refuse("the launcher is another version of dstrain");
    }
    listener_nonce_ = in_.substr(kAgentMagic.size());
    out_ = std::string(kAgentMagic) + nonce_ + static_cast<char>(name_.size()) + name_ +
           keyed_hash_(agent_challenge("agent", listener_nonce_, nonce_, name_));
    asio::async_write(socket_, asio::buffer(out_),
                      [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                        if (error) return self->end(error.message());
                        self->read(kAgentProofBytes, &Call::judge);
                      });
  }

  void judge() {
    is_launcher_ = in_ == keyed_hash_(agent_challenge("launcher", listener_nonce_, nonce_, name_));
    if (is_launcher_) return end("");
    refuse("the program listening there does not know the job's secret: the tokens differ");
  }

  void end(std::string why) {
    why_ = std::move(why);
    if (done_) std::exchange(done_, {})();
  }

  const Place place_;
  const std::string name_;
  const KeyedHash& keyed_hash_;
  tcp::socket socket_;
  std::function<void()> done_;
  const std::string nonce_ = make_agent_nonce();
  std::string listener_nonce_;
  std::string in_;
  std::string out_;
  std::string why_;
  bool is_launcher_ = false;
  bool is_refused_ = false;
};

}  // namespace

std::vector<Place> parse_places(std::string_view text) {
  std::vector<Place> places;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    std::optional<HostAndPort> place = parse_host_and_port(part);
    if (!place || !place->port) {
      throw std::invalid_argument("expected ADDRESS:PORT, or several of them separated by commas");
    }
    places.push_back({.address = std::move(place->host), .port = *place->port});
  }
  return places;
}

std::string to_text(const std::vector<Place>& places) {
  std::vector<std::string> parts;
  for (const Place& place : places)
    parts.push_back(host_and_port(place.address, place.port));
  return fmt::format("{}", fmt::join(parts, ","));
}

DialledLauncher dial_launcher(asio::io_context& loop,
                              const std::vector<Place>& places,
                              const std::string& own_name,
                              const KeyedHash& keyed_hash,
                              const MakeChannelSeal& make_seal,
                              std::chrono::milliseconds deadline) {
  const std::string name = own_name.substr(0, kMaxAgentNameBytes);
  std::vector<std::shared_ptr<Call>> calls;
  std::size_t under_way = 0;
  std::shared_ptr<Call> launcher;
  for (const Place& place : places) {
    const auto& call = calls.emplace_back(std::make_shared<Call>(loop, place, name, keyed_hash));
    ++under_way;
    call->begin([&, call] {
      --under_way;
      if (call->is_launcher() && !launcher) launcher = call;
    });
  }
  run_until(
      loop, [&] { return launcher || under_way == 0; }, deadline);
  std::vector<std::string> words;
  for (const auto& call : calls) {
    if (call == launcher) continue;
    words.push_back(call->describe());
    call->give_up();
  }
  while (under_way > 0)  // their handlers refer to what lives here
    loop.run_one();
  loop.restart();  // without work it has stopped, and its next user would wait in vain
  if (!launcher) {
    const std::string why =
        fmt::format("the launcher cannot be reached: {}", fmt::join(words, "; "));
    const auto is_refused = [](const auto& call) { return call->is_refused(); };
    if (std::any_of(calls.begin(), calls.end(), is_refused)) throw DialRefused(why);
    throw std::runtime_error(why);
  }
  tcp::socket socket = launcher->take_socket();
  socket.set_option(tcp::no_delay(true));
  end_when_silent(socket.native_handle(), kSilenceLimit);
  return {.socket = std::move(socket), .seal = make_seal ? launcher->seal(make_seal) : nullptr};
}

}  // namespace dstrain::launcher
