/** Sends a change to nsqadmin and keeps the result of each node; a failure everywhere is a result as well. */

import { ask, reason, RequestFailed } from "./request";
import type { NodeOutcome } from "./log_types";

export interface ChangeResult<Effect> {
  outcomes: NodeOutcome<Effect>[];
  message: string;
  failed: boolean;
}

export async function change<Effect>(method: string, address: string, body: unknown): Promise<ChangeResult<Effect>> {
  try {
    const answer = await ask<{ outcomes: NodeOutcome<Effect>[]; message: string }>(method, address, body);
    return { ...answer, failed: answer.outcomes.every((outcome) => outcome.error) };
  } catch (error) {
    const document = error instanceof RequestFailed ? (error.document as { outcomes?: NodeOutcome<Effect>[] } | null) : null;
    return { outcomes: document?.outcomes ?? [], message: reason(error), failed: true };
  }
}
