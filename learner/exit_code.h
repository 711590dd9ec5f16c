#pragma once
// How the process ends (protocol.md §9). The operator decides by the code whether it is charged and
// retried.
namespace archipelago::learner {

enum class ExitCode {
  kFinished = 0,         // the run is over, and only then
  kInternal = 1,         // a bug or a broken machine: charged, retried
  kUsage = 2,            // command line
  kLeft = 10,            // on SIGTERM
  kFenced = 11,          // a newer incarnation lives
  kConfigRefused = 12,   // not retried
  kDataUnreadable = 13,  // not retried
  kWatchdog = 14,        // no completed step for too long
};

}  // namespace archipelago::learner
