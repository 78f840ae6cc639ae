/** The operation whose dialog is open. */

import { api } from "../lib/address";
import { ask, reason, RequestFailed } from "../lib/request";
import type { Operation, OperationName, Outcome } from "../lib/types";

export interface OperationRequest {
  name: Exclude<OperationName, "create">;
  topic: string;
  channel?: string;
  /** The nodes that have the topic or channel; `node` is the selected one, empty for all. */
  nodes: string[];
  node?: string;
  /** Messages that would be lost. */
  waiting?: number;
  done?: () => void;
}

export interface Result {
  outcomes: Outcome[];
  message: string;
  failed: boolean;
}

class Operations {
  pending = $state.raw<OperationRequest | null>(null);

  ask(request: OperationRequest): void {
    this.pending = request;
  }

  dismiss(): void {
    this.pending = null;
  }
}

export const operations = new Operations();

/** Runs an operation; failures are part of the result. */
export async function operate(operation: Operation): Promise<Result> {
  try {
    const answer = await ask<{ outcomes: Outcome[]; message: string }>("POST", api("operations"), operation);
    return { ...answer, failed: false };
  } catch (error) {
    const outcomes =
      error instanceof RequestFailed ? (error.document as { outcomes?: Outcome[] } | null)?.outcomes : undefined;
    return { outcomes: outcomes ?? [], message: reason(error), failed: true };
  }
}
