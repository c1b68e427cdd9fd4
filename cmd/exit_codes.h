// Exit codes of every dstrain command. Scripts and schedulers rely on them: numbers never change
// their meaning. A process that a signal ended counts as 128 + its number.
#pragma once

#include <stdexcept>
#include <string>

namespace dstrain {

enum ExitCode : int {
  kExitSuccess = 0,
  kExitInternal = 1,     ///< an error of dstrain itself, or one that nothing below describes
  kExitUsage = 2,        ///< command line, config, hostfile, or a file that they name
  kExitPreflight = 3,    ///< the job cannot run here: hosts unreachable, port or folder in use
  kExitRendezvous = 4,   ///< not all ranks arrived in time
  kExitCheckpoint = 5,   ///< the checkpoint asked for cannot be used
  kExitStorage = 6,      ///< writing failed: no space, I/O error, no permission, folder gone
  kExitNumerical = 7,    ///< loss or gradients not finite
  kExitHang = 8,         ///< the job stood still, or a collective passed its deadline
  kExitNoProgress = 9,   ///< restarts without progress
  kExitCorruption = 10,  ///< copies of the training state differ: memory changed by itself
  kExitPeerLost = 14,    ///< a peer was lost, the one to blame: of a rank, or of a node not leading
  kExitSignalBase = 128,  ///< 128 + n: ended by signal n; 129, 130 and 143: interrupted, orderly
};

/// The meaning of a code, for messages: "the configuration is wrong". Empty if it has none here.
std::string describe_exit_code(int code);

/// The ranks did not find each other: somebody is missing, or was refused. Exit code 4.
class RendezvousError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The code for the exception that is being handled, and its message. Call in a catch block only.
struct Failure {
  int exit_code = kExitInternal;
  std::string message;
};
Failure describe_current_exception();

}  // namespace dstrain
