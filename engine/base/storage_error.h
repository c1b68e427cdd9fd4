// StorageError: a disk refuses what is written to it or does not give back what it was given. Its
// message has the path, the cause and, where space is lacking, the needed and the free bytes. Exit
// code 6.
#pragma once

#include <stdexcept>

namespace dstrain {

class StorageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace dstrain
