// NcclGroup: the members of one NCCL communicator, and how long they wait for each other.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "engine/comm/activity.h"

namespace dstrain {

struct NcclGroup {
  std::string name;          ///< unique in the job
  std::vector<int> members;  ///< world ranks, ascending
  int rank = 0;              ///< this one's place among them
};

struct NcclOptions {
  std::chrono::milliseconds timeout{600'000};         ///< deadline of a collective
  std::chrono::milliseconds connect_timeout{60'000};  ///< deadline of forming a group
  ActivityRecorder* activity = nullptr;               ///< notified of every collective; may be null
};

}  // namespace dstrain
