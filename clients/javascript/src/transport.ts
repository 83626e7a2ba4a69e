/**
 * HTTP requests to the server, each with a deadline that also covers name resolution and slow answers.
 *
 * Uses `node:http`, not `fetch`: it knows whether a connection was reused, and loads in no time.
 */

import * as http from "node:http";
import * as https from "node:https";

import { dumps, isObject, parsed } from "./wire.js";

const MAX_RESPONSE_BYTES = 16 * 1024 * 1024;
const PREFIX = "/api/v1";

/** The answer of the server. */
export interface Response {
  status: number;
  document: Readonly<Record<string, unknown>>;
  retryAfterSeconds: number;
}

export interface Sending {
  seconds: number;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
}

/** The server gave no verdict. The text says why. */
export class NoAnswer extends Error {
  retryAfterSeconds = 0;
  /** Address or key is wrong: retrying soon is pointless. */
  isPermanent = false;
  /** The server works, and will never accept this request. */
  isRejected = false;
  /** The server takes no more such requests for now. */
  isTooMany = false;
}

/** Throw `NoAnswer` unless a request succeeded. */
export function throwForStatus(url: string, response: Response): void {
  const { status, document } = response;
  if (status < 300) return;
  const detail = String(document["detail"] ?? "").slice(0, 300);
  const text = `${url} answered ${status} ${String(document["code"] ?? "")}: ${detail}`;
  const error = new NoAnswer(text.replace(/[: ]+$/, ""));
  error.isPermanent = (status >= 300 && status < 400) || [401, 403, 404, 405].includes(status);
  error.isTooMany = status === 429;
  error.isRejected = [400, 409, 413, 415, 422].includes(status);
  error.retryAfterSeconds = error.isRejected || error.isPermanent ? 0 : response.retryAfterSeconds;
  throw error;
}

/** Sends requests on connections that are kept open. */
export class Transport {
  /** Address of the server. */
  readonly url: string;
  private readonly base: URL;
  private readonly prefix: string;
  private readonly agent: http.Agent;
  private readonly headers: Record<string, string>;

  constructor(url: string, key: string, userAgent: string) {
    try {
      this.base = new URL(url.includes("://") ? url : `http://${url}`);
    } catch {
      throw new TypeError(`The address of LoopGuard must be an HTTP address, not "${url}".`);
    }
    if (!/^https?:$/.test(this.base.protocol) || !this.base.hostname || this.base.port === "0") {
      throw new TypeError(`The address of LoopGuard must be an HTTP address, not "${url}".`);
    }
    if (!/^[!-~]+$/.test(key)) throw new TypeError("The LoopGuard API key is empty or contains invalid characters.");
    const path = this.base.pathname.replace(/\/+$/, "");
    this.prefix = path.endsWith(PREFIX) ? path : path + PREFIX;
    this.url = this.base.origin + this.prefix.slice(0, -PREFIX.length);
    // Connections that wait for the next call do not keep the process alive.
    this.agent = new (this.isSecure ? https : http).Agent({ keepAlive: true, maxSockets: 64 });
    this.headers = { Authorization: `Bearer ${key}`, Accept: "application/json", "User-Agent": userAgent };
  }

  private get isSecure(): boolean {
    return this.base.protocol === "https:";
  }

  /** Send a request, and return its response. Throws `NoAnswer`, or the reason of an aborted signal. */
  async send(method: string, path: string, document: unknown, sending: Sending): Promise<Response> {
    const body = document === undefined ? undefined : Buffer.from(dumps(document));
    const deadline = performance.now() + sending.seconds * 1000;
    const request = { method, path, body, deadline, sending };
    try {
      return await this.exchange(request);
    } catch (error) {
      // The server had closed the idle connection. Events count once, so that sending again is safe.
      if (error instanceof StaleConnection) return await this.exchange(request);
      throw error;
    }
  }

  private exchange(given: {
    method: string;
    path: string;
    body: Buffer | undefined;
    deadline: number;
    sending: Sending;
  }): Promise<Response> {
    const { method, path, body, sending } = given;
    const signal = sending.signal;
    return new Promise((resolve, reject) => {
      const failed = (error: unknown): void => {
        finish();
        request.destroy();
        reject(error);
      };
      const late = (): void => failed(new NoAnswer(`${this.url} did not answer in time.`));
      const aborted = (): void => failed(signal?.reason);
      const finish = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", aborted);
      };
      const request = (this.isSecure ? https : http).request({
        agent: this.agent,
        protocol: this.base.protocol,
        hostname: this.base.hostname.replace(/^\[|\]$/g, ""),
        port: this.base.port,
        path: this.prefix + path,
        method,
        headers: {
          ...this.headers,
          ...sending.headers,
          ...(body ? { "Content-Type": "application/json", "Content-Length": body.length } : {}),
        },
      });
      // An answer that arrived while the event loop was busy is read before the request is given up.
      const timer = setTimeout(() => setImmediate(late), Math.max(0, given.deadline - performance.now()));
      if (signal?.aborted) return aborted();
      signal?.addEventListener("abort", aborted);
      request.on("error", (error: NodeJS.ErrnoException) => {
        const isStale = request.reusedSocket && (error.code === "ECONNRESET" || error.code === "EPIPE");
        failed(isStale ? new StaleConnection(this.sentence(error)) : new NoAnswer(this.sentence(error)));
      });
      request.on("response", (response) => {
        const chunks: Buffer[] = [];
        let size = 0;
        response.on("data", (chunk: Buffer) => {
          chunks.push(chunk);
          if ((size += chunk.length) > MAX_RESPONSE_BYTES) {
            failed(new NoAnswer("The answer is too long to be from LoopGuard."));
          }
        });
        response.on("error", (error: NodeJS.ErrnoException) => failed(new NoAnswer(this.sentence(error))));
        response.on("end", () => {
          finish();
          try {
            resolve(this.read(response, Buffer.concat(chunks).toString("utf8")));
          } catch (error) {
            reject(error);
          }
        });
      });
      request.end(body);
    });
  }

  private read(response: http.IncomingMessage, text: string): Response {
    const status = response.statusCode ?? 0;
    const document = text ? parsed(text) : {};
    if (!isObject(document) && status < 400) {
      throw new NoAnswer(`${this.url} is not a LoopGuard server: its answer is not JSON.`);
    }
    const pause = response.headers["retry-after"] ?? "";
    return {
      status,
      document: isObject(document) ? document : {},
      retryAfterSeconds: /^\d+$/.test(pause) ? Number(pause) : 0,
    };
  }

  private sentence(error: NodeJS.ErrnoException): string {
    const code = error.code ?? error.name;
    if (code === "ECONNREFUSED") return `No server listens at ${this.url}.`;
    if (code === "ENOTFOUND" || code === "EAI_AGAIN") return `The name ${this.base.hostname} was not found.`;
    if (/CERT|SSL|TLS|VERIFY|SIGNATURE/.test(code)) {
      return `The certificate or the encryption of ${this.url} was not accepted: ${code}.`;
    }
    return `The connection to ${this.url} failed: ${code}.`;
  }
}

class StaleConnection extends NoAnswer {}
