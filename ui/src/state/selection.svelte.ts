/** The selected topics or channels of a list, for actions on many at once. */

export interface Target {
  topic: string;
  channel?: string;
  /** The messages that would be lost. */
  waiting: number;
}

export function keyOf(target: { topic: string; channel?: string }): string {
  return target.channel ? `${target.topic}/${target.channel}` : target.topic;
}

export class Selection {
  isOn = $state(false);
  targets = $state.raw(new Map<string, Target>());

  has(key: string): boolean {
    return this.targets.has(key);
  }

  toggle(target: Target): void {
    const targets = new Map(this.targets);
    if (!targets.delete(keyOf(target))) targets.set(keyOf(target), target);
    this.targets = targets;
  }

  choose(targets: Target[]): void {
    this.targets = new Map(targets.map((target) => [keyOf(target), target]));
  }

  stop(): void {
    this.isOn = false;
    this.targets = new Map();
  }
}
