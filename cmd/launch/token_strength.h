// Judges how hard a job's token is to guess. An attacker who has seen one handshake can try
// millions of tokens a second against it offline, so a token must have the strength of a key: 128
// bits.
#pragma once

#include <string>
#include <string_view>

namespace dstrain {

/// How to get one that is strong enough.
constexpr const char* kTokenHowTo = "dstrain token makes one";

/// The reason why it can be guessed, as a clause: "has 6 characters …". Empty: it cannot, as far as
/// its length, its alphabet and its repetitions tell; how it was chosen cannot be seen.
std::string why_guessable(std::string_view token);

}  // namespace dstrain
