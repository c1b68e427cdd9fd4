// Errors that the launcher reports before anything runs. what() is one sentence for the user.
#pragma once

#include <stdexcept>

namespace dstrain::launcher {

/// A hostfile, or a flag that filters it, is wrong. Exit code 2.
class HostfileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Another flag, or a file that it names, is wrong. Exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The hosts cannot run this job: not reachable, port taken. Exit code 3.
class PreflightError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace dstrain::launcher
