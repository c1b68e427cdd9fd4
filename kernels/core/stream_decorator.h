// StreamDecorator: a stream that passes everything on to another and does something in addition. A
// backend that enqueues its work on streams of its own kind finds its own through innermost().
#pragma once

#include "kernels/core/device.h"

namespace dstrain {

class StreamDecorator : public Stream {
 public:
  /// The stream that is decorated.
  [[nodiscard]] virtual Stream& inner() = 0;
};

/// `stream`, or what lies under all its decorators.
inline Stream& innermost(Stream& stream) {
  Stream* at = &stream;
  while (auto* const decorator = dynamic_cast<StreamDecorator*>(at)) {
    at = &decorator->inner();
  }
  return *at;
}

}  // namespace dstrain
