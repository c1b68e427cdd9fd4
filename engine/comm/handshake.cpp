#include "engine/comm/handshake.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "engine/comm/keyed_hash.h"

namespace dstrain {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kCallerAt = kMagicBytes;
constexpr std::size_t kNonceAt = kCallerAt + sizeof(std::uint32_t);
constexpr std::size_t kProofAt = kNonceAt + kNonceBytes;

std::string_view text_of(const WireKey& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

}  // namespace

AcceptingHandshake::AcceptingHandshake(std::string_view magic)
    : magic_(magic), nonce_(make_nonce()) {}

bool AcceptingHandshake::take(std::string_view bytes) {
  const std::size_t count = std::min(bytes.size(), wanted());
  std::memcpy(hello_.data() + taken_, bytes.data(), count);
  taken_ += count;
  const std::size_t seen = std::min(taken_, magic_.size());
  return std::string_view(hello_.data(), seen) == magic_.substr(0, seen);
}

std::uint32_t AcceptingHandshake::caller() const {
  std::uint32_t caller = 0;
  std::memcpy(&caller, hello_.data() + kCallerAt, sizeof caller);
  return caller;
}

std::optional<WireKeys> AcceptingHandshake::judge(std::string_view secret,
                                                  std::string_view subject) const {
  const std::string_view hello(hello_.data(), hello_.size());
  const WireKeys keys =
      derive_wire_keys(secret, subject, nonce_, hello.substr(kNonceAt, kNonceBytes));
  if (wanted() != 0 ||
      !equal_in_constant_time(hello.substr(kProofAt), text_of(keys.dialer_proof))) {
    return std::nullopt;
  }
  return keys;
}

std::string AcceptingHandshake::verdict(const WireKeys& keys) {
  return std::string(text_of(keys.acceptor_proof));
}

DialingHandshake::DialingHandshake(std::string_view magic,
                                   std::string_view secret,
                                   std::string subject,
                                   std::uint32_t caller)
    : magic_(magic), secret_(secret), subject_(std::move(subject)), caller_(caller) {}

std::size_t DialingHandshake::wanted() const {
  switch (state_) {
    case State::kGreeting:
      return kGreetingBytes - in_.size();
    case State::kVerdict:
      return kVerdictBytes - in_.size();
    default:
      return 0;
  }
}

DialingHandshake::State DialingHandshake::take(std::string_view bytes) {
  in_.append(bytes.substr(0, wanted()));
  if (wanted() == 0 && (state_ == State::kGreeting || state_ == State::kVerdict)) {
    state_ = state_ == State::kGreeting ? read_greeting() : read_verdict();
    in_.clear();
  }
  return state_;
}

DialingHandshake::State DialingHandshake::read_greeting() {
  const std::size_t name_bytes = kMagicBytes - 1;
  if (in_.compare(0, name_bytes, magic_.substr(0, name_bytes)) != 0) {
    return State::kNotOurs;
  }
  if (in_[name_bytes] != magic_[name_bytes]) {
    their_version_ = in_[name_bytes];
    return State::kOtherVersion;
  }
  const std::string nonce = make_nonce();
  keys_ = derive_wire_keys(secret_, subject_, std::string_view(in_).substr(kMagicBytes), nonce);
  hello_.assign(magic_);
  hello_.append(reinterpret_cast<const char*>(&caller_), sizeof caller_);
  hello_.append(nonce).append(text_of(keys_.dialer_proof));
  return State::kVerdict;
}

DialingHandshake::State DialingHandshake::read_verdict() const {
  if (in_ == AcceptingHandshake::refusal()) {
    return State::kRefused;
  }
  return equal_in_constant_time(in_, text_of(keys_.acceptor_proof)) ? State::kDone
                                                                    : State::kImpostor;
}

}  // namespace dstrain
