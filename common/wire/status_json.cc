// The status document (read by operators and people) and the durable state (journal, checkpoint).
#include "common/wire/json_fields.h"
#include "common/wire/messages_json.h"

namespace archipelago::wire {

using namespace diloco;

namespace {

Json settings_json(const LiveSettings& s) {
  return {
      {"generation", s.generation},
      {"quorum", s.quorum},
      {"grace",
       {{"rule", to_string(s.grace)}, {"steps", s.grace_steps}, {"fraction", s.grace_fraction}}},
      {"budget", {{"globalSteps", s.budget.value}}}};
}

// Types only: check_settings knows what is allowed.
void read_settings(Fields& fields, LiveSettings& s) {
  fields.integer("generation", s.generation, INT64_MIN, INT64_MAX);
  fields.integer("quorum", s.quorum, INT32_MIN, INT32_MAX);
  if (const Json* grace = fields.find("grace", true)) {
    Fields inner(*grace, fields.path("grace"));
    std::string rule;
    inner.text("rule", rule, 64);
    inner.number("steps", s.grace_steps);
    inner.number("fraction", s.grace_fraction);
    bool known = false;
    for (const GraceKind kind : {GraceKind::kSteps, GraceKind::kSlack, GraceKind::kOff}) {
      if (to_string(kind) != rule) continue;
      s.grace = kind;
      known = true;
    }
    if (!known) inner.set_error("rule: given '" + rule + "', allowed steps, slack, off");
    fields.nested(inner);
  }
  if (const Json* budget = fields.find("budget", true)) {
    Fields inner(*budget, fields.path("budget"));
    inner.integer("globalSteps", s.budget.value, INT64_MIN, INT64_MAX);
    fields.nested(inner);
  }
}

Json unit_json(const UnitStatus& u) {
  Json json = {{"name", u.name},
               {"datacenter", u.datacenter},
               {"phase", u.phase},
               {"incarnation", u.incarnation.value},
               {"localStep", u.local_step.value},
               {"tokens", u.tokens},
               {"steps", u.steps},
               {"mergedRounds", u.merged_rounds},
               {"recoverySeconds", u.recovery_seconds}};
  put_number(json, "stepSeconds", u.step_seconds);
  put_number(json, "stepSecondsTotal", u.seconds_in_steps);
  put_number(json, "exchangeSecondsTotal", u.exchange_seconds);
  put_number(json, "lastHeardSeconds", u.last_heard_seconds);
  put_number(json, "steppingSeconds", u.stepping_seconds);
  put_number(json, "tokensPerSecond", u.tokens_per_second);
  put_number(json, "uplinkMbps", u.uplink_bytes_per_second * 8e-6);
  return json;
}

void read_numbers(Fields& fields, const char* key, std::vector<double>& out) {
  fields.list(key, 4096, [&](const Json& element) {
    if (!element.is_number()) return fields.set_error(std::string(key) + " must hold numbers");
    out.push_back(element.get<double>());
  });
}

void read_unit(Fields& fields, UnitStatus& u) {
  fields.text("name", u.name, 63);
  fields.text("datacenter", u.datacenter, 63, false);
  fields.text("phase", u.phase, 63, false);
  fields.id("incarnation", u.incarnation, 0, false);
  fields.id("localStep", u.local_step, 0, false);
  fields.integer("tokens", u.tokens, 0, INT64_MAX, false);
  fields.integer("steps", u.steps, 0, INT64_MAX, false);
  fields.integer("mergedRounds", u.merged_rounds, 0, INT64_MAX, false);
  read_numbers(fields, "recoverySeconds", u.recovery_seconds);
  fields.number("stepSeconds", u.step_seconds);
  fields.number("stepSecondsTotal", u.seconds_in_steps);
  fields.number("exchangeSecondsTotal", u.exchange_seconds);
  fields.number("lastHeardSeconds", u.last_heard_seconds);
  fields.number("steppingSeconds", u.stepping_seconds);
  fields.number("tokensPerSecond", u.tokens_per_second);
  double mbps = 0;
  fields.number("uplinkMbps", mbps);
  u.uplink_bytes_per_second = mbps / 8e-6;
}

Json totals_json(const SyncerState::Identity::Totals& t) {
  return {{"tokens", t.tokens},
          {"steps", t.steps},
          {"seconds", t.seconds_in_steps},
          {"exchange", t.exchange_seconds}};
}

void read_totals(Fields& fields, const char* key, SyncerState::Identity::Totals& t) {
  const Json* value = fields.find(key, true);
  if (value == nullptr) return;
  Fields inner(*value, fields.path(key));
  inner.integer("tokens", t.tokens, 0, INT64_MAX);
  inner.integer("steps", t.steps, 0, INT64_MAX);
  inner.number("seconds", t.seconds_in_steps);
  inner.number("exchange", t.exchange_seconds);
  fields.nested(inner);
}

Json ledger_json(const LedgerSnapshot& l) {
  Json held = Json::array(), returned = Json::array(), orphans = Json::array();
  for (const auto& h : l.held)
    held.push_back(Json::array({h.unit, h.incarnation.value, h.block, h.from}));
  for (const auto& o : l.returned) returned.push_back(Json::array({o.block, o.from}));
  for (const auto& o : l.orphans) orphans.push_back(Json::array({o.block, o.from}));
  return {{"nextBlock", l.next_block}, {"reserved", l.reserved}, {"consumed", l.consumed},
          {"skipped", l.skipped},      {"held", held},           {"returned", returned},
          {"orphans", orphans}};
}

void read_open(Fields& fields, const char* key, std::vector<LedgerSnapshot::Open>& out) {
  fields.list(key, 1 << 20, [&](const Json& e) {
    if (!e.is_array() || e.size() != 2 || !e[0].is_number_unsigned() || !e[1].is_number_unsigned())
      return fields.set_error(std::string(key) + " must hold [block, from]");
    out.push_back({e[0].get<std::uint64_t>(), e[1].get<std::uint32_t>()});
  });
}

void read_ledger(Fields& fields, LedgerSnapshot& l) {
  fields.integer("nextBlock", l.next_block, 0, INT64_MAX);
  fields.integer("reserved", l.reserved, 0, INT64_MAX);
  fields.integer("consumed", l.consumed, 0, INT64_MAX);
  fields.integer("skipped", l.skipped, 0, INT64_MAX);
  fields.list("held", 1 << 20, [&](const Json& e) {
    if (!e.is_array() || e.size() != 4 || !e[0].is_string() || !e[1].is_number_integer() ||
        !e[2].is_number_unsigned() || !e[3].is_number_unsigned())
      return fields.set_error("held must hold [unit, incarnation, block, from]");
    l.held.push_back({e[0].get<std::string>(), Incarnation(e[1].get<std::int64_t>()),
                      e[2].get<std::uint64_t>(), e[3].get<std::uint32_t>()});
  });
  read_open(fields, "returned", l.returned);
  read_open(fields, "orphans", l.orphans);
}

Json keys_json(const std::vector<UploadKey>& keys) {
  Json out = Json::array();
  for (const auto& k : keys)
    out.push_back(Json::array({k.who.unit, k.who.incarnation.value, k.who.session, k.attempt}));
  return out;
}

void read_keys(Fields& fields, const char* key, GlobalStep t, std::vector<UploadKey>& out) {
  fields.list(key, 4096, [&](const Json& e) {
    if (!e.is_array() || e.size() != 4 || !e[0].is_string() || !e[1].is_number_integer() ||
        !e[2].is_string() || !e[3].is_number_integer())
      return fields.set_error(std::string(key) +
                              " must hold [unit, incarnation, session, attempt]");
    out.push_back(
        {{e[0].get<std::string>(), Incarnation(e[1].get<std::int64_t>()), e[2].get<std::string>()},
         t,
         e[3].get<std::int32_t>()});
  });
}

Json recent_json(const std::map<GlobalStep, CommitRecord>& recent) {
  Json out = Json::array();
  for (const auto& [t, r] : recent)
    out.push_back({{"t", t.value},
                   {"fragment", r.fragment},
                   {"members", keys_json(r.members)},
                   {"excluded", keys_json(r.excluded)}});
  return out;
}

void read_recent(Fields& fields, std::map<GlobalStep, CommitRecord>& out) {
  fields.list("recent", SyncerState::kRecent, [&](const Json& e) {
    CommitRecord r;
    Fields inner(e, fields.path("recent[]"));
    inner.id("t", r.t, 1);
    inner.integer("fragment", r.fragment, -1, 1 << 30);
    read_keys(inner, "members", r.t, r.members);
    read_keys(inner, "excluded", r.t, r.excluded);
    fields.nested(inner);
    out.insert_or_assign(r.t, std::move(r));
  });
}

Json identity_json(const SyncerState::Identity& id) {
  return {{"incarnation", id.incarnation.value}, {"session", id.session},
          {"datacenter", id.datacenter},         {"scavenging", id.scavenging},
          {"canValidate", id.can_validate},      {"sequencesPerStep", id.sequences_per_step},
          {"past", totals_json(id.past)},        {"current", totals_json(id.current)},
          {"mergedRounds", id.merged_rounds},    {"recoverySeconds", id.recovery_seconds}};
}

void read_identity(Fields& fields, SyncerState::Identity& id) {
  fields.id("incarnation", id.incarnation, 0);
  fields.text("session", id.session, 32);
  fields.text("datacenter", id.datacenter, 63);
  fields.boolean("scavenging", id.scavenging);
  fields.boolean("canValidate", id.can_validate);
  fields.integer("sequencesPerStep", id.sequences_per_step, 0, 1'000'000);
  read_totals(fields, "past", id.past);
  read_totals(fields, "current", id.current);
  fields.integer("mergedRounds", id.merged_rounds, 0, INT64_MAX);
  read_numbers(fields, "recoverySeconds", id.recovery_seconds);
}

}  // namespace

std::string encode(const StatusDocument& m) {
  Json json = {{"phase", m.phase},
               {"runId", m.run_id},
               {"epoch", m.epoch},
               {"globalStep", m.global_step.value},
               {"budget", m.budget.value},
               {"tokens", m.tokens},
               {"validationStep", m.validation_step.value},
               {"bytesUp", m.bytes_up},
               {"bytesDown", m.bytes_down},
               {"lastCheckpointStep", m.last_checkpoint_step.value},
               {"rounds", m.rounds},
               {"settingsGeneration", m.settings.generation},
               {"settings", settings_json(m.settings)},
               {"lastDecision", m.last_decision}};
  put_number(json, "loss", m.loss);
  put_number(json, "validationLoss", m.validation_loss);
  put_number(json, "mergedFraction", m.merged_fraction);
  put_number(json, "mergedTokens", m.merged_tokens);
  put_number(json, "meanParticipants", m.mean_participants);
  Json conditions = Json::array(), units = Json::array(), fenced = Json::array();
  for (const auto& c : m.conditions)
    conditions.push_back(
        {{"type", c.type}, {"status", c.status}, {"reason", c.reason}, {"message", c.message}});
  for (const auto& u : m.units) units.push_back(unit_json(u));
  for (const auto& f : m.fenced) fenced.push_back({{"name", f.name}, {"highest", f.highest.value}});
  json["conditions"] = std::move(conditions);
  json["units"] = std::move(units);
  json["fenced"] = std::move(fenced);
  return dump(json);
}

namespace {
void read_status_lists(Fields& fields, StatusDocument& m) {
  fields.list("conditions", 64, [&](const Json& e) {
    StatusDocument::Condition c;
    Fields inner(e, "status.conditions[]");
    inner.text("type", c.type, 128);
    inner.text("status", c.status, 16);
    inner.text("reason", c.reason, 128, false);
    inner.text("message", c.message, 4096, false);
    fields.nested(inner);
    m.conditions.push_back(c);
  });
  fields.list("units", 4096, [&](const Json& e) {
    UnitStatus u;
    Fields inner(e, "status.units[]");
    read_unit(inner, u);
    fields.nested(inner);
    m.units.push_back(u);
  });
  fields.list("fenced", 4096, [&](const Json& e) {
    StatusDocument::Fenced f;
    Fields inner(e, "status.fenced[]");
    inner.text("name", f.name, 63);
    inner.id("highest", f.highest, 0);
    fields.nested(inner);
    m.fenced.push_back(f);
  });
}
}  // namespace

Result<StatusDocument> parse_status(std::string_view text) {
  ARCH_TRY(const Json json, parse_object(text, kMaxStateBytes));
  StatusDocument m;
  Fields fields(json, "status");
  fields.text("phase", m.phase, 32);
  fields.text("runId", m.run_id, 128, false);
  fields.integer("epoch", m.epoch, 0, INT64_MAX, false);
  fields.id("globalStep", m.global_step, 0, false);
  fields.id("budget", m.budget, 0, false);
  fields.integer("tokens", m.tokens, 0, INT64_MAX, false);
  fields.id("validationStep", m.validation_step, 0, false);
  fields.integer("bytesUp", m.bytes_up, 0, INT64_MAX, false);
  fields.integer("bytesDown", m.bytes_down, 0, INT64_MAX, false);
  fields.id("lastCheckpointStep", m.last_checkpoint_step, 0, false);
  fields.integer("rounds", m.rounds, 0, INT64_MAX, false);
  fields.text("lastDecision", m.last_decision, 4096, false);
  fields.number("loss", m.loss);
  fields.number("validationLoss", m.validation_loss);
  fields.number("mergedFraction", m.merged_fraction);
  fields.number("mergedTokens", m.merged_tokens);
  fields.number("meanParticipants", m.mean_participants);
  fields.integer("settingsGeneration", m.settings.generation, 0, INT64_MAX, false);
  if (const Json* settings = fields.find("settings", false)) {
    Fields inner(*settings, "status.settings");
    read_settings(inner, m.settings);
    fields.nested(inner);
  }
  read_status_lists(fields, m);
  ARCH_TRY_VOID(fields.done());
  return m;
}

std::string encode(const SyncerState& s) {
  Json json = {{"version", 1},
               {"epoch", s.epoch},
               {"lineage", s.lineage},
               {"committed", s.committed.value},
               {"seeded", s.seeded},
               {"finalPublished", s.final_published},
               {"finished", s.finished},
               {"layoutDigest", s.layout_digest},
               {"datasetSequences", s.dataset_sequences},
               {"datasetDigest", s.dataset_digest},
               {"mergedTokens", s.merged_tokens},
               {"rounds", s.rounds},
               {"participants", s.participants},
               {"bytesUp", s.bytes_up},
               {"bytesDown", s.bytes_down},
               {"validationStep", s.validation_step.value}};
  put_number(json, "validationLoss", s.validation_loss);
  Json units = Json::object();
  for (const auto& [name, id] : s.units) units[name] = identity_json(id);
  json["units"] = std::move(units);
  json["recent"] = recent_json(s.recent);
  if (s.ledger) json["ledger"] = ledger_json(*s.ledger);
  if (s.settings) {
    json["settings"] = settings_json(s.settings->settings);
    json["settings"]["epoch"] = s.settings->epoch;
    json["settings"]["source"] = s.settings->source;
  }
  return dump(json);
}

Result<SyncerState> parse_state(std::string_view text) {
  ARCH_TRY(const Json json, parse_object(text, kMaxStateBytes));
  SyncerState s;
  Fields fields(json, "state");
  std::int64_t version = 0;
  fields.integer("version", version, 1, 1);
  fields.integer("epoch", s.epoch, 0, INT64_MAX);
  fields.integer("lineage", s.lineage, 0, INT64_MAX, false);
  fields.id("committed", s.committed, 0);
  fields.boolean("seeded", s.seeded);
  fields.boolean("finalPublished", s.final_published);
  fields.boolean("finished", s.finished);
  fields.text("layoutDigest", s.layout_digest, 64);
  fields.integer("datasetSequences", s.dataset_sequences, 0, INT64_MAX);
  fields.text("datasetDigest", s.dataset_digest, 128);
  fields.number("mergedTokens", s.merged_tokens);
  fields.integer("rounds", s.rounds, 0, INT64_MAX);
  fields.integer("participants", s.participants, 0, INT64_MAX);
  fields.integer("bytesUp", s.bytes_up, 0, INT64_MAX);
  fields.integer("bytesDown", s.bytes_down, 0, INT64_MAX);
  fields.id("validationStep", s.validation_step, 0);
  fields.number("validationLoss", s.validation_loss);
  if (const Json* units = fields.find("units", true)) {
    if (!units->is_object() || units->size() > 4096)
      fields.set_error("units must be an object of at most 4096");
    else
      for (const auto& [name, value] : units->items()) {
        Fields inner(value, "state.units." + name);
        read_identity(inner, s.units[name]);
        fields.nested(inner);
      }
  }
  read_recent(fields, s.recent);
  if (const Json* ledger = fields.find("ledger", false)) {
    Fields inner(*ledger, "state.ledger");
    read_ledger(inner, s.ledger.emplace());
    fields.nested(inner);
  }
  if (const Json* settings = fields.find("settings", false)) {
    Fields inner(*settings, "state.settings");
    SettingsRecord& record = s.settings.emplace();
    read_settings(inner, record.settings);
    inner.integer("epoch", record.epoch, 0, INT64_MAX);
    inner.text("source", record.source, 255);
    fields.nested(inner);
  }
  ARCH_TRY_VOID(fields.done());
  return s;
}

Result<LiveSettings> parse_settings(std::string_view text) {
  ARCH_TRY(const Json json, parse_object(text, kMaxMessageBytes));
  LiveSettings settings;
  Fields fields(json, "settings");
  read_settings(fields, settings);
  if (auto read = fields.done(); !read) return fail(ErrorKind::kRefused, read.error().message);
  ARCH_TRY_VOID(check_settings(settings));
  return settings;
}

std::string encode(const LiveSettings& settings) { return dump(settings_json(settings)); }

}  // namespace archipelago::wire
