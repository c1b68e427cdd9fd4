// MonitorConfig: says which other programs' files a run writes its curves to, beside metrics.jsonl.
// It is part of config.h.
#pragma once

#include <string>

namespace dstrain {

/// "tensorboard" and "csv_monitor": files in <output_path>/<job_name>.
struct MonitorFolder {
  bool enabled = false;
  std::string output_path;  ///< empty: a folder in training.output_dir, which is then all of it
  std::string job_name;     ///< empty: the name of training.output_dir

  bool operator==(const MonitorFolder&) const = default;
};

/// "wandb": an offline run in training.output_dir, which `wandb sync` sends.
struct WandbConfig {
  bool enabled = false;
  std::string project = "dstrain";
  std::string group;  ///< empty: none
  std::string team;   ///< empty: that of whoever sends it

  bool operator==(const WandbConfig&) const = default;
};

struct MonitorConfig {
  MonitorFolder tensorboard;
  MonitorFolder csv;
  WandbConfig wandb;

  bool operator==(const MonitorConfig&) const = default;
};

}  // namespace dstrain
