#pragma once
// `archipelago-outer-optimizer --serve-model`: the model routes over a data folder that is only
// read, for a pod that mounts the claim of a run that is over. It takes no lock and writes nothing.
#include <filesystem>
#include <memory>

#include "common/base/log.h"
#include "common/http/server.h"
#include "outer-optimizer/model_files.h"

namespace archipelago::outer {

class ModelServer {
 public:
  // /v1/model, /v1/model/{file}, /healthz, /readyz. kRefused: the folder holds neither a model nor
  // a checkpoint.
  [[nodiscard]] static Result<std::unique_ptr<ModelServer>> start(
      const std::filesystem::path& data_dir, const http::Endpoint& listen, Logger log);
  [[nodiscard]] int port() const { return server_.port(); }

 private:
  ModelServer(const std::filesystem::path& data_dir, bool finished,
              const http::ServerOptions& options, Logger log);

  ModelFiles models_;
  http::Server server_;
};

// The admin port of both modes: probes must be answered while models are read.
[[nodiscard]] http::ServerOptions admin_options(const http::Endpoint& listen);

}  // namespace archipelago::outer
