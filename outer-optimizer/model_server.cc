#include "outer-optimizer/model_server.h"

namespace archipelago::outer {

http::ServerOptions admin_options(const http::Endpoint& listen) {
  http::ServerOptions options;
  options.listen = listen;
  options.threads = 2 + ModelFiles::kMaxReaders;
  options.max_connections = 64;
  options.request_timeout =
      std::chrono::hours(2);  // a model over a thin link; see the minimum rate
  return options;
}

ModelServer::ModelServer(const std::filesystem::path& data_dir, bool finished,
                         const http::ServerOptions& options, Logger log)
    : models_(data_dir, [finished] { return finished; }), server_(options, std::move(log)) {
  add_model_routes(server_, models_);
  for (const char* probe : {"/healthz", "/readyz"})
    server_.route("GET", probe, [](const http::Request&) { return http::Reply::text("ok\n"); });
}

Result<std::unique_ptr<ModelServer>> ModelServer::start(const std::filesystem::path& data_dir,
                                                        const http::Endpoint& listen, Logger log) {
  const bool finished = holds_final_model(data_dir);
  const auto kept = list_checkpoints(data_dir / "checkpoints");
  if (!finished && kept.empty())
    return fail(ErrorKind::kRefused,
                "--data-dir " + data_dir.string() + " holds neither a model nor a checkpoint");
  std::unique_ptr<ModelServer> out(
      new ModelServer(data_dir, finished, admin_options(listen), log.named("http")));
  ARCH_TRY_VOID(out->server_.start());
  log.info("serving", {{"listen", listen.text()},
                       {"admin_port", out->port()},
                       {"finished", finished},
                       {"checkpoints", kept.size()}});
  return out;
}

}  // namespace archipelago::outer
