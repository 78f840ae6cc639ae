/**
 * A stream of server-sent events that reconnects by itself.
 *
 * Browsers allow six connections to a server across all tabs. A tab that has been hidden for a while therefore closes its
 * stream, and opens it again when it is visible.
 */

const HIDDEN_MS = 30_000;
const RETRY_MS = 1_000;

export interface Listener {
  events: Record<string, (data: string) => void>;
  opened?: () => void;
  /** The connection is lost; the stream reconnects. */
  lost?: () => void;
}

export class EventStream {
  #source: EventSource | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #closed = false;
  readonly #watch = (): void => this.#visibility();

  constructor(
    private readonly address: string,
    private readonly listener: Listener,
  ) {
    document.addEventListener("visibilitychange", this.#watch);
    this.#open();
  }

  close(): void {
    this.#closed = true;
    document.removeEventListener("visibilitychange", this.#watch);
    this.#drop();
  }

  #drop(): void {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  #open(): void {
    this.#drop();
    const source = new EventSource(this.address);
    this.#source = source;
    source.onopen = () => this.listener.opened?.();
    source.onerror = () => {
      // Browsers reconnect by themselves, but not after an HTTP error, which may be temporary.
      this.#drop();
      this.listener.lost?.();
      if (!this.#closed) this.#timer = setTimeout(() => this.#open(), RETRY_MS * (1 + Math.random()));
    };
    for (const [name, take] of Object.entries(this.listener.events)) {
      source.addEventListener(name, (event) => take((event as MessageEvent<string>).data));
    }
  }

  #visibility(): void {
    if (document.hidden) {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#drop(), HIDDEN_MS);
    } else if (this.#source === null && !this.#closed) {
      this.#open();
    } else {
      clearTimeout(this.#timer);
    }
  }
}
