/** The page on which an admin logs in to the dashboard with a key. It has no script: the key is sent as a form, once. */
import { createHash } from 'node:crypto';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { Failure, messageOf } from '../../../shared/base/failure.ts';
import type { SessionView } from '../../../shared/protocol/router_api.ts';
import type { Keys, KnownKey } from '../access/keys.ts';
import { isOwnPage, type Sessions } from '../access/sessions.ts';
import { adminRoute, LOGIN, openRoute } from './route_access.ts';

/** Bytes of the form (P1). */
const MAX_FORM_BYTES = 4_096;
/** The dashboard as a page below it leads to it, also with a prefix of a proxy in front. */
const DASHBOARD = '../dashboard';

/** Keys and sessions of log-ins. */
export interface LogIns {
  readonly keys: Pick<Keys, 'find'>;
  readonly sessions: Pick<Sessions, 'begin' | 'end' | 'callerOf'>;
}

const STYLE = `:root{color-scheme:light dark;font:15px/1.5 system-ui,sans-serif}body{display:grid;place-content:center;min-height:90vh;margin:0}
form{display:grid;gap:.75rem;width:min(24rem,90vw)}h1{font-size:1.25rem;margin:0}p{margin:0}input,button{font:inherit;padding:.5rem .75rem}[role=alert]{color:light-dark(#a1260d,#ff9b87)}`;
const styleHash = createHash('sha256').update(STYLE).digest('base64');
const HEADERS = {
  'content-security-policy': `default-src 'none'; style-src 'sha256-${styleHash}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'`,
  'x-content-type-options': 'nosniff',
  // With no-referrer browsers send `Origin: null` with the form, and the server could not tell that it is of its own page.
  'referrer-policy': 'same-origin',
  'cache-control': 'no-store',
};

/** Adds the page, its form, and the end of a log-in. `logIns`: undefined where the router asks for no keys, and everybody is an admin. */
export function addLoginRoutes(app: FastifyInstance, logIns: LogIns | undefined): void {
  app.addContentTypeParser(
    'application/x-www-form-urlencoded',
    { parseAs: 'string', bodyLimit: MAX_FORM_BYTES },
    (_request, body, done) => {
      done(null, new URLSearchParams(String(body)));
    },
  );
  app.get(LOGIN, openRoute, (_request, reply) => (logIns ? send(reply, 200, '') : reply.redirect(DASHBOARD, 303)));
  const formRoute = { ...openRoute, errorHandler: answerFormError };
  app.post<{ Body: URLSearchParams | undefined }>(LOGIN, formRoute, (request, reply) => {
    if (!logIns) return reply.redirect(DASHBOARD, 303);
    try {
      refuseOtherPage(request);
      const known = adminOf(request.body?.get('key')?.trim() ?? '', logIns.keys);
      return reply.header('set-cookie', logIns.sessions.begin(known, isSecure(request))).redirect(DASHBOARD, 303);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      return send(reply, error.status, messageOf(error));
    }
  });
  app.get('/api/session', adminRoute, ({ headers }): SessionView => {
    return { logged_in_as: logIns?.sessions.callerOf(headers)?.key ?? null };
  });
  app.post('/dashboard/logout', openRoute, (request, reply) => {
    if (logIns) {
      refuseOtherPage(request);
      void reply.header('set-cookie', logIns.sessions.end(isSecure(request)));
    }
    return reply.redirect('login', 303);
  });
}

/** Whether the browser speaks HTTPS, with the router or with a proxy in front, which then says so. */
function isSecure({ protocol, headers }: FastifyRequest): boolean {
  const { 'x-forwarded-proto': ofProxy = '' } = headers;
  return protocol === 'https' || /^ *https *(,|$)/i.test([ofProxy].flat()[0] ?? '');
}

/** @throws Failure `permission_denied` for a request that a browser sends for a page of another server */
function refuseOtherPage({ headers }: FastifyRequest): void {
  if (isOwnPage(headers)) return;
  throw new Failure(
    'permission_denied',
    'This comes from a page of another server. If a proxy is in front, let it pass on the header Host of the browser.',
  );
}

/** Answers a body that is no form, or too large a one, with the page. */
function answerFormError(error: { readonly statusCode?: number }, _request: FastifyRequest, reply: FastifyReply): void {
  if (error.statusCode === 415)
    void send(
      reply,
      415,
      'Send the key as a form: key=… with the header content-type: application/x-www-form-urlencoded.',
    );
  else if (error.statusCode === 413)
    void send(reply, 413, `The form is larger than ${MAX_FORM_BYTES} bytes: it has the key alone.`);
  else throw error as Error;
}

/** @throws Failure `invalid_api_key` for a text that is no key here, `permission_denied` for a client's key */
function adminOf(key: string, keys: Pick<Keys, 'find'>): KnownKey {
  const known = key === '' ? undefined : keys.find(key);
  if (!known) throw new Failure('invalid_api_key', 'This key is not known here.');
  if (!known.caller.isAdmin)
    throw new Failure(
      'permission_denied',
      'This is the key of a client. The dashboard is for admins: their entries have admin: true.',
    );
  return known;
}

/** Sends the page; `message` is one of ours, and needs no escapes. */
function send(reply: FastifyReply, status: number, message: string): FastifyReply {
  const alert = message === '' ? '' : `<p role="alert">${message}</p>`;
  const page = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>Penstock: log in</title>
<style>${STYLE}</style></head><body><main><form method="post" action="login"><h1>Penstock</h1><p>The dashboard is for admins. Log in with an admin's API key.</p>${alert}
<label for="key">API key</label><input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<button>Log in</button><p>Logged in already? <a href="${DASHBOARD}">Open the dashboard</a></p></form></main></body></html>`;
  return reply.status(status).headers(HEADERS).type('text/html; charset=utf-8').send(page);
}
