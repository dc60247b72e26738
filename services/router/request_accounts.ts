/** Accounts of the requests of each client: series by tenant, and the audit log. */
import { Failure, errorStatus } from '../../shared/base/failure.ts';
import type { RoleContext } from '../../shared/node/role.ts';
import type { Instance } from '../../shared/placement/instance.ts';
import type { Access } from './access/open_access.ts';
import { EngineCharges } from './metrics/engine_charges.ts';
import { TenantSeries } from './metrics/tenant_series.ts';
import { AuditLog, type AuditEntry } from './observe/audit_log.ts';
import type { RouterConfig } from './options.ts';
import type { EndedRequest, OnRequestEnd } from './record/request_outcome.ts';

/** Accounts of a router. */
export interface RequestAccounts {
  readonly tenants: TenantSeries;
  /** Lines that the audit log has dropped. */
  readonly numAuditDropped: () => number;
  /** Undefined where nobody counts or logs HTTP requests. */
  readonly onRequestEnd: OnRequestEnd | undefined;
  /** Writes what waits for the disk. */
  readonly close: () => Promise<void>;
}

/** Parts of a router that its accounts read. */
interface Accounted {
  readonly access: Pick<Access, 'logIns'>;
  readonly view: { readonly all: () => readonly Instance[] };
}

/** Opens the accounts. Rejects with a ConfigError where the file of `--audit-log` cannot be written. */
export async function openAccounts(
  { config, clock, log, openAppender }: Pick<RoleContext<RouterConfig>, 'config' | 'clock' | 'log' | 'openAppender'>,
  { access: { logIns }, view }: Accounted,
): Promise<RequestAccounts> {
  const { audit_log: file } = config;
  const charges = new EngineCharges(clock, () => view.all());
  const tenants = new TenantSeries(() => logIns?.keys.tenants ?? [], charges);
  const appender = file === '' ? undefined : await openAppender(file, '--audit-log');
  const audit = appender && new AuditLog({ file, appender, clock, log });
  const onRequestEnd: OnRequestEnd = (ended) => {
    const { caller, isForClients, status } = ended;
    if (caller && isForClients) tenants.answered(caller.tenant, status);
    audit?.add(auditEntryOf(ended));
  };
  return {
    tenants,
    numAuditDropped: () => audit?.numDropped ?? 0,
    onRequestEnd: logIns || audit ? onRequestEnd : undefined,
    close: async () => {
      await audit?.close();
    },
  };
}

/** Returns the line of a request. It quotes nothing of the request but its method. */
function auditEntryOf(ended: EndedRequest): AuditEntry {
  const { startedAtMs, durationMs, method, route, status, address, caller, records, failure } = ended;
  const [first] = records;
  const sum = (of: (record: EndedRequest['records'][number]) => number): number =>
    records.reduce((total, record) => total + of(record), 0);
  return {
    time: new Date(startedAtMs).toISOString(),
    key: caller?.key ?? '',
    tenant: caller?.tenant ?? '',
    address: address ?? null,
    method,
    route,
    model: first?.facts.model ?? null,
    status,
    error: codeOf(failure),
    prompt_tokens: sum(({ counts }) => counts.promptTokens),
    cached_tokens: sum(({ counts }) => Math.min(counts.promptTokens, counts.tokens.cached)),
    output_tokens: sum(({ counts }) => counts.outputTokens),
    request_id: first?.id ?? null,
    duration_ms: Math.round(durationMs),
  };
}

/** Returns the code of an error; null for none. */
function codeOf(failure: unknown): string | null {
  if (failure === undefined) return null;
  return failure instanceof Failure ? failure.code : `http_${errorStatus(failure)}`;
}
