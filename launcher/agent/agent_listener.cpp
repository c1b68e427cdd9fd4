#include "launcher/agent/agent_listener.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <spdlog/spdlog.h>
#include <sys/random.h>

#include "engine/base/network_address.h"
#include "launcher/agent/socket_stream.h"

namespace dstrain::launcher {
namespace {

using asio::ip::tcp;

constexpr std::chrono::milliseconds kAcceptPause{50};  // when descriptors have run out
constexpr std::size_t kMaxToldOf = 256;

tcp::endpoint endpoint_of(const AgentListenerOptions& options) {
  return options.address.empty()
             ? tcp::endpoint(tcp::v6(), options.port)
             : tcp::endpoint(asio::ip::make_address(options.address), options.port);
}

/// "10.0.0.7" also where IPv6 carries it.
std::string address_text(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  return address.to_string();
}

}  // namespace

std::string agent_challenge(std::string_view who,
                            std::string_view listener_nonce,
                            std::string_view agent_nonce,
                            std::string_view name) {
  return std::string(who).append("\0", 1).append(listener_nonce).append(agent_nonce).append(name);
}

std::string agent_key_challenge(std::string_view who,
                                std::string_view listener_nonce,
                                std::string_view agent_nonce,
                                std::string_view name) {
  return agent_challenge("key of " + std::string(who), listener_nonce, agent_nonce, name);
}

std::string make_agent_nonce() {
  std::string nonce(kAgentNonceBytes, '\0');
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return nonce;
}

/// A connection that has not proved anything yet.
class AgentListener::Stranger : public std::enable_shared_from_this<Stranger> {
 public:
  Stranger(AgentListener& listener, tcp::socket socket)
      : listener_(&listener), socket_(std::move(socket)), deadline_(socket_.get_executor()) {
    asio::error_code error;
    host_ = address_text(socket_.remote_endpoint(error).address());
  }

  [[nodiscard]] const std::string& host() const { return host_; }

  void begin() {
    deadline_.expires_after(listener_->options_.proof_deadline);
    deadline_.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->refuse("it did not prove in time that it knows the job's secret");
    });
    greeting_ = std::string(kAgentMagic) + nonce_;
    asio::async_write(socket_, asio::buffer(greeting_),
                      [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                        if (error) self->refuse("it left without a word");
                      });
    // The most that may still come is known at every point, and no more is read.
    read(kAgentMagic.size() + kAgentNonceBytes + 1, &Stranger::take_head);
  }

  /// From here on, nothing more happens to it.
  void leave() {
    listener_ = nullptr;
    deadline_.cancel();
    asio::error_code ignored;
    socket_.close(ignored);
  }

 private:
  void refuse(const std::string& why) {
    if (listener_ != nullptr) listener_->refuse(*this, why);
  }

  void read(std::size_t bytes, void (Stranger::*then)(std::string_view)) {
    in_.resize(bytes);
    asio::async_read(socket_, asio::buffer(in_),
                     [self = shared_from_this(), then](const asio::error_code& error, std::size_t) {
                       if (self->listener_ == nullptr) return;
                       if (error) return self->refuse("it left without proving the job's secret");
                       (self.get()->*then)(std::string(self->in_));
                     });
  }

  void take_head(std::string_view head) {
    if (!head.starts_with(kAgentMagic)) {
      return refuse("it does not speak the protocol of dstrain's agents");
    }
    agent_nonce_ = head.substr(kAgentMagic.size(), kAgentNonceBytes);
    name_bytes_ = static_cast<unsigned char>(head.back());
    read(name_bytes_ + kAgentProofBytes, &Stranger::take_proof);
  }

  void take_proof(std::string_view text) {
    std::string name(text.substr(0, name_bytes_));
    const std::string expected =
        listener_->keyed_hash_(agent_challenge("agent", nonce_, agent_nonce_, name));
    const std::string_view proof = text.substr(name_bytes_);
    if (proof.size() != expected.size() ||
        CRYPTO_memcmp(proof.data(), expected.data(), proof.size()) != 0) {
      return refuse("it does not know the job's secret");
    }
    answer_ = listener_->keyed_hash_(agent_challenge("launcher", nonce_, agent_nonce_, name));
    asio::async_write(
        socket_, asio::buffer(answer_),
        [self = shared_from_this(), name](const asio::error_code& error, std::size_t) {
          if (self->listener_ == nullptr) return;
          if (error) return self->refuse("it left at the last moment");
          self->let_in(name);
        });
  }

  void let_in(const std::string& name) {
    AgentListener& listener = *std::exchange(listener_, nullptr);
    deadline_.cancel();
    asio::error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    end_when_silent(socket_.native_handle(), kSilenceLimit);
    ArrivedAgent agent{.name = name, .stream = std::make_unique<SocketStream>(std::move(socket_))};
    if (listener.options_.make_seal) {
      const auto key_of = [&](std::string_view who) {
        return listener.keyed_hash_(agent_key_challenge(who, nonce_, agent_nonce_, name));
      };
      agent.stream =
          sealed_stream(std::move(agent.stream),
                        listener.options_.make_seal(key_of("launcher"), key_of("agent")));
    }
    listener.strangers_.remove(shared_from_this());
    listener.on_agent_(std::move(agent));
  }

  AgentListener* listener_;  ///< nullptr: the listener has no more to do with it
  tcp::socket socket_;
  asio::steady_timer deadline_;
  std::string host_;
  const std::string nonce_ = make_agent_nonce();
  std::string greeting_;
  std::string in_;
  std::string agent_nonce_;
  std::size_t name_bytes_ = 0;
  std::string answer_;
};

AgentListener::AgentListener(asio::io_context& loop,
                             KeyedHash keyed_hash,
                             OnAgent on_agent,
                             AgentListenerOptions options)
    : loop_(loop),
      keyed_hash_(std::move(keyed_hash)),
      on_agent_(std::move(on_agent)),
      options_(std::move(options)),
      acceptor_(loop),
      accept_timer_(loop) {
  tcp::endpoint endpoint = endpoint_of(options_);
  asio::error_code no_ipv6;
  acceptor_.open(endpoint.protocol(), no_ipv6);
  if (no_ipv6 && options_.address.empty()) {
    endpoint = tcp::endpoint(tcp::v4(), options_.port);
    acceptor_.open(endpoint.protocol());
  } else if (options_.address.empty()) {
    acceptor_.set_option(asio::ip::v6_only(false));
  }
  // A run that has just ended leaves connections behind on a port that was chosen.
  if (options_.port != 0) acceptor_.set_option(tcp::acceptor::reuse_address(true));
  acceptor_.bind(endpoint);
  acceptor_.listen();
  accept_more();
}

AgentListener::~AgentListener() {
  for (const auto& stranger : strangers_)
    stranger->leave();
  asio::error_code ignored;
  acceptor_.close(ignored);
}

std::uint16_t AgentListener::port() const {
  return acceptor_.local_endpoint().port();
}

void AgentListener::accept_more() {
  // Handlers of what was accepted, or has expired, before this object was destroyed are called all
  // the same.
  acceptor_.async_accept([this, alive = std::weak_ptr<const int>(alive_)](
                             const asio::error_code& error, tcp::socket socket) {
    if (alive.expired() || error == asio::error::operation_aborted) return;
    if (error) {
      accept_timer_.expires_after(kAcceptPause);
      accept_timer_.async_wait([this, alive](const asio::error_code& cancelled) {
        if (!cancelled && !alive.expired()) accept_more();
      });
      return;
    }
    if (strangers_.size() >= options_.max_strangers) {
      refuse(*strangers_.front(), "newer ones displaced it");
    }
    strangers_.push_back(std::make_shared<Stranger>(*this, std::move(socket)));
    strangers_.back()->begin();
    accept_more();
  });
}

void AgentListener::refuse(Stranger& stranger, const std::string& why) {
  // One line for each host and reason: a storm of them must not fill the log.
  if (told_of_.size() < kMaxToldOf &&
      told_of_.insert(fmt::format("{} {}", stranger.host(), why)).second) {
    spdlog::warn("a connection from {} is refused: {}", stranger.host(), why);
  }
  const std::shared_ptr<Stranger> alive = stranger.shared_from_this();
  alive->leave();
  strangers_.remove(alive);
}

}  // namespace dstrain::launcher
