// The slider over steps and the play button.

import type { Store } from "../state/state";
import { find, setOptions, setText } from "./element";

const SPEEDS = [2, 4, 8, 15, 30, 60];
const NORMAL = 8;

export class Transport {
  private readonly slider = find<HTMLInputElement>("#step");
  private readonly button = find<HTMLButtonElement>("#play");
  private readonly speed = find<HTMLSelectElement>("#speed");
  private last = 0;
  private playing = false;
  /** When the next step is due. */
  private due = 0;

  constructor(private readonly store: Store) {
    setOptions(
      this.speed,
      SPEEDS.map((rate) => [String(rate), `${rate} / s`]),
      String(NORMAL),
    );
    this.slider.addEventListener("input", () => {
      this.stop();
      store.update({ step: Number(this.slider.value) });
    });
    this.button.addEventListener("click", () => this.toggle());
  }

  get isPlaying(): boolean {
    return this.playing;
  }

  show(step: number, steps: number): void {
    this.last = Math.max(0, steps - 1);
    const most = String(this.last);
    if (this.slider.max !== most) this.slider.max = most;
    if (this.slider.value !== String(step)) this.slider.value = String(step);
    this.slider.setAttribute("aria-valuetext", `step ${step} of ${this.last}`);
    setText(find("#step-line"), `step ${step} of ${this.last}`);
    this.button.disabled = this.last === 0;
  }

  move(by: number): void {
    this.stop();
    this.go(this.store.state.step + by);
  }

  go(step: number): void {
    this.store.update({ step: Math.min(this.last, Math.max(0, step)) });
  }

  toggle(): void {
    if (this.playing) this.stop();
    else this.play();
  }

  stop(): void {
    this.set(false);
  }

  private play(): void {
    if (this.last === 0) return;
    if (this.store.state.step >= this.last) this.go(0);
    this.set(true);
    this.due = performance.now() + this.pause;
    requestAnimationFrame((now) => this.tick(now));
  }

  private tick(now: number): void {
    if (!this.playing) return;
    if (now >= this.due) {
      // Late frames skip no step: what is seen is every step, if need be more slowly.
      this.due = Math.max(this.due + this.pause, now);
      this.go(this.store.state.step + 1);
      if (this.store.state.step >= this.last) {
        this.stop();
        return;
      }
    }
    requestAnimationFrame((next) => this.tick(next));
  }

  private get pause(): number {
    return 1000 / Number(this.speed.value);
  }

  private set(playing: boolean): void {
    if (this.playing === playing) return;
    this.playing = playing;
    this.button.setAttribute("aria-pressed", String(playing));
    this.button.setAttribute("aria-label", playing ? "Pause" : "Play");
    this.store.update({});
  }
}
